// Replaces a part of the page with each event of its stream. A button pauses it.
"use strict";

for (const part of document.querySelectorAll("[data-stream]")) {
  const button = part.parentElement.querySelector("[data-stream-toggle]");
  let source = null;

  function show() {
    button.textContent = source ? "Pause live lag" : "Start live lag";
  }

  function start() {
    source = new EventSource(part.dataset.stream);
    source.addEventListener("html", (event) => {
      part.innerHTML = JSON.parse(event.data).html;
    });
    source.addEventListener("error", (event) => {
      if (!event.data) return;  // The browser connects again by itself.
      stop();
      const {failed, value, remedy} = JSON.parse(event.data);
      const message = document.createElement("p");
      message.className = "failure";
      message.textContent = `${failed}: ${value}. ${remedy}`;
      part.append(message);
    });
    show();
  }

  function stop() {
    source?.close();
    source = null;
    show();
  }

  button.hidden = false;
  button.addEventListener("click", () => (source ? stop() : start()));
  addEventListener("pagehide", () => source?.close());
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) show();
  else start();
}
