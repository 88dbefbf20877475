// Draws a plotly figure and, when its data change, moves the same chart instead of building a new one: the page does
// not flash, zoom and legend stay as the reader left them, and a slider's change is on the screen at once.

const LIBRARY = "./app/static/plotly.min.js";

let loading;
const plotly = () =>
  (loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = LIBRARY;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error(`${LIBRARY} could not be loaded`));
    document.head.append(script);
  }));

const config = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  toImageButtonOptions: { format: "svg" },
};

function draw(library, chart, figure, clicked) {
  chart.clicked = clicked;
  return library.react(chart, figure.data, { uirevision: true, ...figure.layout }, config).then(() => {
    if (!chart.listening) chart.on("plotly_click", (event) => chart.clicked(event));
    chart.listening = true;
  });
}

function element(parent, tag, className) {
  const made = document.createElement(tag);
  made.className = className;
  parent.append(made);
  return made;
}

// A chart, under a title and a verdict where it has them, with a note below.
function panel(parent) {
  const section = element(parent, "section", "live-panel");
  const title = element(section, "h3", "live-title");
  const verdict = element(section, "p", "live-verdict");
  const strong = element(verdict, "strong", "");
  const rest = element(verdict, "span", "");
  const chart = element(section, "div", "live-chart");
  chart.setAttribute("role", "img");
  const note = element(section, "p", "live-note");
  return { title, verdict, strong, rest, chart, note };
}

export default function ({ data, parentElement, setTriggerValue }) {
  const clicked = (event) => setTriggerValue("clicked", event.points[0].customdata ?? null);
  const grid = parentElement.querySelector(".live-grid") ?? element(parentElement, "div", "live-grid");
  grid.panels ??= [];
  while (grid.panels.length < data.length) grid.panels.push(panel(grid));
  data.forEach(({ figure, alt, title, strong, rest, note }, i) => {
    const shown = grid.panels[i];
    for (const [name, text] of Object.entries({ title, strong, rest, note })) {
      shown[name].textContent = text ?? "";
      shown[name].hidden = !text;
    }
    shown.verdict.hidden = !(strong || rest);
    shown.chart.setAttribute("aria-label", alt);
    shown.chart.style.minHeight = `${figure.layout.height}px`;
    const ready = (library) => draw(library, shown.chart, figure, clicked);
    const failed = (error) => (shown.chart.textContent = error.message);
    window.Plotly ? ready(window.Plotly) : plotly().then(ready, failed);
  });
}
