// The console's only script: keyboard shortcuts, live results. Every page works without it.
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

// Records that arrive while a page is open: the rest of a search, or new records of a topic. The
// server sends texts, which become text nodes: no content of a record is read as HTML.
(() => {
  const section = document.querySelector("[data-records]");
  if (!section) return;
  const part = (name) => section.querySelector(`[data-${name}]`);
  const rows = part("rows"), text = part("text"), bar = part("progress"), pause = part("pause");
  const more = part("more");
  const isTail = "tail" in section.dataset;
  const ROWS_MAX = 1000;
  let source = null;

  function cell(row, name, kind) {
    const td = document.createElement(kind === "head" ? "th" : "td");
    if (kind === "head") td.scope = "row";
    let holder = td;
    if (kind === "head" && row.link) {
      holder = document.createElement("a");
      holder.href = row.link;
    } else if (kind === "time") {
      holder = document.createElement("time");
      holder.title = row.time_utc;
    } else if (kind === "data") {
      const isText = !["null", "empty"].includes(row[`${name}_kind`]);
      holder = document.createElement(isText ? "span" : "i");
      holder.className = isText ? "mono" : "note";
    }
    holder.textContent = row[name];
    if (holder !== td) td.append(holder);
    if (row[`${name}_note`]) {
      const note = document.createElement("small");
      note.className = "note";
      note.textContent = row[`${name}_note`];
      td.append(" ", note);
    }
    if (["partition", "offset", "size"].includes(name)) td.className = "number";
    return td;
  }

  function line(row) {
    const tr = document.createElement("tr");
    tr.append(cell(row, "partition"), cell(row, "offset", "head"), cell(row, "time", "time"),
              cell(row, "key", "data"), cell(row, "value", "data"), cell(row, "headers"),
              cell(row, "size"));
    return tr;
  }

  function end() {
    source?.close();
    source = null;
    bar.hidden = !("bar" in section.dataset);
    if (isTail) pause.textContent = "Continue";
    else pause.hidden = true;
  }

  function start() {
    source = new EventSource(section.dataset.records);
    pause.textContent = isTail ? "Pause" : "Stop";
    pause.hidden = false;
    bar.hidden = isTail && !("bar" in section.dataset);
    more.hidden = true;
    text.setAttribute("aria-live", "off");
    source.addEventListener("match", (event) => {
      const made = JSON.parse(event.data).rows.map(line);
      if (isTail) rows.prepend(...made); else rows.append(...made);
      while (isTail && rows.rows.length > ROWS_MAX) rows.deleteRow(-1);
    });
    source.addEventListener("progress", (event) => {
      const data = JSON.parse(event.data);
      text.textContent = data.text;
      if (data.share) bar.value = Number(data.share);
    });
    source.addEventListener("done", (event) => {
      const data = JSON.parse(event.data);
      end();
      pause.hidden = true;
      text.setAttribute("aria-live", "polite");
      text.textContent = data.text;
      part("unread")?.remove();
      if (data.more) {
        more.href = data.more;
        more.hidden = false;
      }
    });
    source.addEventListener("error", (event) => {
      end();
      const data = event.data ? JSON.parse(event.data) : null;
      text.setAttribute("aria-live", "polite");
      text.textContent = data ? `${data.failed}: ${data.value}. ${data.remedy}`
        : "The connection to the console ended. Reload the page to continue.";
    });
  }

  pause.addEventListener("click", () => {
    if (source) {
      end();
      if (!isTail) more.hidden = !more.getAttribute("href");
    } else start();
  });
  addEventListener("pagehide", () => source?.close());
  if (isTail && matchMedia("(prefers-reduced-motion: reduce)").matches) {
    pause.textContent = "Start";
    pause.hidden = false;
  } else start();
})();
