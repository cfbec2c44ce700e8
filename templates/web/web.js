// Reads the page again now and then, and swaps its main part where that has changed. What is open stays open, and the
// focus and the place on the page stay; a chart is drawn again only where its values have changed. This script runs
// before any chart is drawn: it compares what the server sends.
const seconds = Number(document.body.dataset.seconds);
const specification = (holder) => holder.querySelector("script[type='application/json']")?.textContent;
let text = document.querySelector("main").innerHTML;

function keepCharts(fresh, main) {
  const drawn = [...main.querySelectorAll(".chart.live")];
  for (const holder of fresh.querySelectorAll(".chart")) {
    const same = drawn.find((old) => specification(old) === specification(holder));
    if (same) holder.replaceWith(same);
  }
}
async function update() {
  if (document.hidden || document.activeElement?.matches("input, select")) return;
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok && answer.status !== 503) return;
  const found = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = found.querySelector("main");
  document.querySelector("#read-at").textContent = found.querySelector("#read-at").textContent;
  if (fresh.innerHTML === text) return;
  text = fresh.innerHTML;
  const main = document.querySelector("main");
  const open = [...main.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
  const focused = document.activeElement?.getAttribute("href");
  const scrolled = [...main.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
  keepCharts(fresh, main);
  main.replaceChildren(...fresh.childNodes);
  for (const one of main.querySelectorAll("details > summary")) one.parentElement.open = open.includes(one.textContent);
  [...main.querySelectorAll(".scroll")].forEach((one, index) => scrolled[index] && one.scrollTo(...scrolled[index]));
  if (focused) [...main.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
  window.drawCharts?.(main);
}
setInterval(() => update().catch(() => undefined), 1000 * seconds);
window.updatePage = update;
