// Replaces the part of a page that shows what goes on, every few seconds, until the user stops it.
"use strict";
{
  const control = document.querySelector("[data-refresh]");
  const button = control.querySelector("button");
  const key = "django_events.refresh";
  let running = localStorage.getItem(key) !== "off";

  const show = () => {
    button.textContent = running ? button.dataset.pause : button.dataset.resume;
    control.hidden = false;
  };

  // A user who reads a table with the keyboard, or marks a text to copy it, is not interrupted.
  const isBusy = (target) =>
    document.hidden || target.contains(document.activeElement) || String(document.getSelection()) !== "";

  const refresh = async () => {
    const target = document.getElementById(control.dataset.target);
    if (!running || isBusy(target)) {
      return;
    }
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
      if (!answer.ok) {
        return;
      }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById(control.dataset.target);
      if (fresh && !isBusy(target)) {
        target.replaceWith(fresh);
      }
    } catch {
      // The server is away for a moment: what is shown says how old it is.
    }
  };

  button.addEventListener("click", () => {
    running = !running;
    localStorage.setItem(key, running ? "on" : "off");
    show();
  });
  show();
  setInterval(refresh, Number(control.dataset.refresh) * 1000);
}
