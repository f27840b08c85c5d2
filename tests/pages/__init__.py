"""The code of the documentation's pages, run as a site of its own."""
