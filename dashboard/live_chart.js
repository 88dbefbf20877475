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

export default function ({ data, parentElement, setTriggerValue }) {
  const { figure, alt } = data;
  let chart = parentElement.querySelector(".live-chart");
  if (!chart) {
    chart = document.createElement("div");
    chart.className = "live-chart";
    chart.setAttribute("role", "img");
    parentElement.append(chart);
  }
  chart.setAttribute("aria-label", alt);
  chart.style.minHeight = `${figure.layout.height}px`;
  chart.clicked = (event) => setTriggerValue("clicked", event.points[0].customdata ?? null);
  const draw = (library) =>
    library.react(chart, figure.data, { uirevision: true, ...figure.layout }, config).then(() => {
      if (!chart.listening) chart.on("plotly_click", (event) => chart.clicked(event));
      chart.listening = true;
    });
  window.Plotly ? draw(window.Plotly) : plotly().then(draw, (error) => (chart.textContent = error.message));
}
