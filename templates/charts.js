// Replaces each still picture of a chart by the same chart that shows values, zooms and chooses.
// Shift and the wheel zoom, dragging moves, a double click shows all again.
function fit(spec, room) {
  const parts = spec.vconcat ?? spec.hconcat ?? [spec];
  const across = spec.hconcat ? parts.length : 1;
  const widest = Math.max(...parts.map((part) => part.width));
  const beside = 900 - across * widest;
  for (const part of parts) part.width = Math.max((room - beside) / across, 240 / across);
}
async function draw(holder) {
  const source = holder.querySelector("script[type='application/json']");
  const spec = JSON.parse(source.textContent);
  fit(spec, holder.clientWidth);
  const plot = document.createElement("div");
  await vegaEmbed(plot, spec, { actions: false, ast: true, renderer: "svg", tooltip: { theme: "pollux" } });
  plot.querySelector("svg")?.setAttribute("aria-hidden", "true");
  holder.querySelector("svg")?.remove();
  holder.append(plot);
  holder.classList.add("live");
}
// The pages of `pollux web` change: they draw again what is new.
window.drawCharts = function (root) {
  for (const holder of root.querySelectorAll(".chart:not(.live)")) {
    if (holder.querySelector("script[type='application/json']")) draw(holder).catch((error) => console.error(error));
  }
};
window.drawCharts(document);
