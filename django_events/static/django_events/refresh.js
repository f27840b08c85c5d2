// Replaces the part of a page that shows what goes on, every few seconds, until the user stops it, and says when it can't.
"use strict";
{
  const control = document.querySelector("[data-refresh]");
  const button = control.querySelector("button");
  const notice = control.querySelector("[data-frozen]");
  const key = "django_events.refresh";
  const period = Number(control.dataset.refresh) * 1000;
  let running = localStorage.getItem(key) !== "off";
  let refreshed = Date.now();

  const show = () => {
    button.textContent = running ? button.dataset.pause : button.dataset.resume;
    control.hidden = false;
  };

  const live = () => document.getElementById(control.dataset.target);

  // What is said stays the same while the reason does: a screen reader says it once.
  const say = (why) => {
    const time = live().querySelector("time").textContent;
    const said = why && `${notice.dataset.frozen.replace("{time}", time)} ${why}`;
    if (notice.textContent !== said) {
      notice.textContent = said;
    }
    notice.hidden = !why;
    live().classList.toggle("events-old", Boolean(why));
  };

  // Tables keep their place and details stay open; what has the focus keeps it.
  const place = (element) =>
    element.id || ["aria-labelledby", "aria-label", "href"].map((name) => element.getAttribute(name)).find(Boolean);
  const replace = (target, fresh) => {
    const focused = target.contains(document.activeElement) && place(document.activeElement);
    const scrolled = [...target.querySelectorAll(".events-wide")].map((table) => [place(table), table.scrollLeft]);
    const open = [...target.querySelectorAll("details[open]")].map(place);
    target.replaceWith(fresh);
    const found = (name) =>
      [...fresh.querySelectorAll("a, summary, details, [tabindex]")].find((one) => place(one) === name);
    for (const name of open) {
      found(name)?.setAttribute("open", "");
    }
    for (const [name, left] of scrolled) {
      const table = found(name);
      if (table) {
        table.scrollLeft = left;
      }
    }
    if (focused) {
      found(focused)?.focus({ preventScroll: true });
    }
  };

  const look = async () => {
    const answer = await fetch(location.href, { credentials: "same-origin", redirect: "manual" });
    if (answer.type === "opaqueredirect") {
      return notice.dataset.signedOut;
    }
    if (!answer.ok) {
      return `${notice.dataset.failed} (${answer.status}).`;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById(control.dataset.target);
    if (!fresh) {
      return notice.dataset.signedOut;
    }
    // A user who marks a text to copy it is not interrupted.
    if (String(document.getSelection()) === "") {
      replace(live(), fresh);
      refreshed = Date.now();
    }
    return Date.now() - refreshed > 3 * period ? notice.dataset.busy : "";
  };

  const refresh = async () => {
    if (!running || document.hidden) {
      return;
    }
    let why;
    try {
      why = await look();
    } catch {
      why = notice.dataset.away;
    }
    say(why);
  };

  button.addEventListener("click", () => {
    running = !running;
    localStorage.setItem(key, running ? "on" : "off");
    show();
    refresh();
  });
  document.addEventListener("visibilitychange", refresh);
  show();
  setInterval(refresh, period);
}
