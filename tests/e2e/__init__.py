"""The pages in a real browser: Debian's Chromium, driven by Playwright. Nothing leaves the machine.

chromium   the browser: find it, start it, end it
screens    what a page is looked at on: desktop or phone, light or dark
guard      what no test expected in a browser: messages, errors, failed requests, requests of strangers
csp        the policy that every page is answered with
people     who logs in, and how
pictures   screenshots for the documentation
"""
