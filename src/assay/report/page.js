"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const hidden = new Set();
  let axis = "share";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (policy) => (policy === "full" ? css("--ink") : (data.styles[policy] || {})[dark.matches ? "dark" : "light"] || css("--soft"));
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const options = { displaylogo: false, responsive: true, displayModeBar: false, scrollZoom: false };

  function layout(extra) {
    const line = { gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--grid"), tickfont: { color: css("--soft"), size: 11 }, fixedrange: true };
    const title = (text) => ({ text, font: { size: 11, color: css("--soft") }, standoff: 6 });
    return {
      height: 290, margin: { l: 48, r: 14, t: 10, b: 40 }, showlegend: false, hovermode: "closest", dragmode: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif", color: css("--ink"), size: 12 },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 }, align: "left" },
      ...extra, xaxis: { ...line, ...extra.xaxis, title: title(extra.xtitle || "") }, yaxis: { ...line, ...extra.yaxis },
    };
  }

  const titles = { share: "bytes held, of the full cache (all layers)", bytes: "MiB held (all layers)", share_eligible: "bytes held, of the full cache (eligible layers)" };
  const along = (point) => (axis === "bytes" ? point.bytes / 2 ** 20 : point[axis]);

  function quality(task, element) {
    const shapes = [];
    const traces = [];
    const points = task.full ? [task.full, ...task.rows] : task.rows;
    const [least, most] = [Math.min(...points.map(along)), Math.max(...points.map(along))];
    const room = (most - least || most || 1) * 0.12;
    const range = [Math.max(0, least < 0.4 * most ? 0 : least - room), most + room];
    const names = Object.keys(data.styles).filter((p) => !hidden.has(p));
    const apart = (policy) => (names.indexOf(policy) - (names.length - 1) / 2) * (range[1] - range[0]) * 0.009;
    if (task.full) {
      if (task.full.low !== null) shapes.push({ type: "rect", xref: "paper", x0: 0, x1: 1, y0: task.full.low, y1: task.full.high, line: { width: 0 }, fillcolor: css("--ink"), opacity: 0.08, layer: "below" });
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: task.full.mean, y1: task.full.mean, line: { color: css("--ink"), width: 1.3 }, layer: "below" });
      traces.push({ x: [along(task.full)], y: [task.full.mean], mode: "markers", marker: { symbol: "line-ns-open", size: 11, color: css("--ink") }, text: [task.full.text], hovertemplate: "%{text}<extra></extra>" });
    }
    for (const [policy, style] of Object.entries(data.styles)) {
      if (hidden.has(policy)) continue;
      const rows = task.rows.filter((r) => r.policy === policy).sort((a, b) => along(a) - along(b));
      if (!rows.length) continue;
      const bars = rows.some((r) => r.low !== null);
      traces.push({
        x: rows.map((r) => along(r) + apart(policy)), y: rows.map((r) => r.mean), mode: "lines+markers", text: rows.map((r) => r.text), hovertemplate: "%{text}<extra></extra>", opacity: task.says_nothing ? 0.45 : 1,
        line: { color: colour(policy), width: 1.8, dash: style.dash }, marker: { symbol: style.symbol, size: 9, color: colour(policy), line: { color: colour(policy), width: style.symbol.includes("thin") ? 2 : 0 } },
        error_y: bars ? { type: "data", symmetric: false, array: rows.map((r) => (r.high === null ? 0 : r.high - r.mean)), arrayminus: rows.map((r) => (r.low === null ? 0 : r.mean - r.low)), color: colour(policy), thickness: 1, width: 0 } : undefined,
      });
    }
    const share = task.measure === "share";
    return Plotly.react(element, traces, layout({
      shapes, xtitle: titles[axis],
      xaxis: { range, nticks: 6, tickformat: axis === "bytes" ? "" : ".0%" },
      yaxis: share ? { range: [-0.03, 1.03], tickformat: ".0%" } : { autorange: "reversed" },
    }), options);
  }

  function bars(element, key, title, digits) {
    const rows = data.speed.filter((s) => s[key] !== null).reverse();
    if (!rows.length) { element.closest(".panels > div").hidden = true; return; }
    Plotly.react(element, [{
      type: "bar", orientation: "h", y: rows.map((r) => r.name), x: rows.map((r) => r[key]), marker: { color: rows.map((r) => colour(r.policy)), opacity: 0.85 },
      text: rows.map((r) => r[key].toFixed(digits)), textposition: "auto", insidetextanchor: "end", hovertemplate: "%{y}: %{x:.3g}<extra></extra>", cliponaxis: false,
    }], layout({ height: 60 + 21 * rows.length, bargap: 0.25, xtitle: title, margin: { l: 8, r: 26, t: 6, b: 40 }, xaxis: { rangemode: "tozero" }, yaxis: { automargin: true, gridcolor: "rgba(0,0,0,0)", tickfont: { size: 11, color: css("--ink") } } }), options);
  }

  function panel(parent, heading, below, warning) {
    const box = document.createElement("div");
    box.innerHTML = `<h3>${escape(heading)}</h3><p>${escape(below)}</p>${warning ? `<p class="tag">says nothing here: ${escape(warning)}</p>` : ""}<div class="plot"></div>`;
    parent.append(box);
    return box.querySelector(".plot");
  }

  const box = document.getElementById("quality");
  const elements = data.tasks.map((task) => panel(box, task.name, task.measure === "nll" ? "perplexity; lower is better, so the axis points down" : "share of right answers", task.says_nothing));
  const speed = { rate: document.getElementById("rate"), first: document.getElementById("first") };
  for (const [key, heading] of [["rate", "Decoding"], ["first", "Time to first token"]]) {
    speed[key].innerHTML = `<h3>${heading}</h3><div class="plot"></div>`;
    speed[key] = speed[key].querySelector(".plot");
  }

  const shapes = {
    circle: '<circle r="4.6"/>', square: '<path d="M-4.2-4.2h8.4v8.4h-8.4z"/>', diamond: '<path d="M0-6l6 6-6 6-6-6z"/>', "triangle-up": '<path d="M0-5.5l5.6 9.6H-5.6z"/>',
    "triangle-down": '<path d="M0 5.5l5.6-9.6H-5.6z"/>', cross: '<path d="M-2-5.5h4v3.5h3.5v4H2v3.5h-4V2h-3.5v-4H-2z"/>', hexagon: '<path d="M-2.7-4.7h5.4L5.4 0 2.7 4.7h-5.4L-5.4 0z"/>',
    star: '<path d="M0-6l1.6 3.9 4.2.3-3.2 2.7 1 4.1L0 2.8-3.6 5l1-4.1-3.2-2.7 4.2-.3z"/>', "x-thin": '<path d="M-4-4l8 8m0-8l-8 8" stroke-width="2" fill="none"/>',
  };

  function draw() {
    data.tasks.forEach((task, i) => quality(task, elements[i]));
    bars(speed.rate, "rate", "tokens per second", 1);
    bars(speed.first, "first", "seconds", 2);
    document.querySelectorAll(".chip[data-policy]").forEach((chip) => {
      const mark = chip.querySelector("svg");
      const style = data.styles[chip.dataset.policy];
      mark.innerHTML = shapes[style.symbol.replace("-open", "")] || shapes.circle;
      mark.setAttribute("fill", style.symbol.endsWith("-open") ? "none" : colour(chip.dataset.policy));
      mark.setAttribute("stroke", style.symbol.includes("-open") || style.symbol.includes("thin") ? colour(chip.dataset.policy) : "none");
    });
  }

  const choose = (buttons, chosen) => buttons.forEach((b) => b.setAttribute("aria-pressed", String(b === chosen)));
  const axes = document.querySelectorAll("[data-axis]");
  axes.forEach((button) => button.addEventListener("click", () => { axis = button.dataset.axis; choose(axes, button); draw(); }));
  const tabs = document.querySelectorAll("[data-kept]");
  tabs.forEach((tab) => tab.addEventListener("click", () => {
    choose(tabs, tab);
    document.querySelectorAll("[data-kept-panel]").forEach((p) => { p.hidden = p.dataset.keptPanel !== tab.dataset.kept; });
  }));
  document.querySelectorAll(".chip[data-policy]").forEach((chip) => chip.addEventListener("click", () => {
    const policy = chip.dataset.policy;
    if (!hidden.delete(policy)) hidden.add(policy);
    chip.setAttribute("aria-pressed", String(!hidden.has(policy)));
    draw();
  }));
  const folded = () => document.querySelectorAll("details:not([open])");
  let opened = [];
  window.addEventListener("beforeprint", () => { opened = [...folded()]; opened.forEach((d) => { d.open = true; }); });
  window.addEventListener("afterprint", () => opened.forEach((d) => { d.open = false; }));
  dark.addEventListener("change", draw);
  draw();
})();
