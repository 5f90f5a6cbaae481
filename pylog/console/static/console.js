// The console's only script: keyboard shortcuts. Every page works without it.
"use strict";

(() => {
  const rows = () => [...document.querySelectorAll("table.rows tbody tr")];
  let current = -1;
  let isGoing = false;

  function select(step) {
    const all = rows();
    if (!all.length) return;
    all[current]?.classList.remove("current");
    current = Math.min(Math.max(current + step, 0), all.length - 1);
    all[current].classList.add("current");
    (all[current].querySelector("a") ?? all[current]).focus();
    all[current].scrollIntoView({block: "nearest"});
  }

  function isTyping(target) {
    return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
  }

  const actions = {
    "/": () => document.querySelector("[data-search]")?.focus(),
    "j": () => select(1),
    "k": () => select(-1),
    "?": () => document.getElementById("keys").showModal(),
    "g": () => {
      isGoing = true;
      setTimeout(() => { isGoing = false; }, 1500);
    },
  };

  document.addEventListener("keydown", (event) => {
    if (document.documentElement.dataset.keys !== "on" || event.ctrlKey || event.metaKey
        || event.altKey || isTyping(event.target)) return;
    const target = isGoing && document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (target) {
      event.preventDefault();
      target.click();
    } else if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  });
})();
