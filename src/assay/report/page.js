"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const all = (selector) => document.querySelectorAll(selector);
  const hidden = new Set();
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (policy) => (policy === "full" ? css("--ink") : (data.styles[policy] || {})[dark.matches ? "dark" : "light"] || css("--soft"));
  const escape = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
  const options = { displaylogo: false, responsive: true, displayModeBar: false, scrollZoom: false };
  let axis = "share";
  let length = data.lengths[data.lengths.length - 1];
  let budget = data.budgets[0];

  // Plots are drawn when they come near the view, and plotly itself runs only then: the words and tables are there first.
  const figures = new Map();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const figure = figures.get(entry.target);
      if (!entry.isIntersecting || figure.seen) continue;
      figure.seen = true;
      load();
      figure.draw(entry.target);
      performance.mark("drawn");
    }
  }, { rootMargin: "300px" });
  function load() {
    if (window.Plotly) return;
    const script = document.createElement("script");
    script.textContent = at("plotly").textContent;
    document.head.append(script);
  }
  function plot(element, draw) {
    figures.set(element, { draw, seen: false });
    watch.observe(element);
  }
  const redraw = () => figures.forEach((figure, element) => { if (figure.seen && element.isConnected) figure.draw(element); });

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
  const upwards = (task) => (task.measure === "share" ? { range: [-0.03, 1.03], tickformat: ".0%" } : { autorange: "reversed" });

  function whole(task) {
    const shapes = [];
    if (!task.full) return shapes;
    if (task.full.low !== null) shapes.push({ type: "rect", xref: "paper", x0: 0, x1: 1, y0: task.full.low, y1: task.full.high, line: { width: 0 }, fillcolor: css("--ink"), opacity: 0.08, layer: "below" });
    shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: task.full.mean, y1: task.full.mean, line: { color: css("--ink"), width: 1.3 }, layer: "below" });
    return shapes;
  }

  function curve(policy, style, rows, x, opacity) {
    const bars = rows.some((r) => r.low !== null);
    return {
      x, y: rows.map((r) => r.mean), mode: "lines+markers", text: rows.map((r) => r.text), hovertemplate: "%{text}<extra></extra>", opacity,
      line: { color: colour(policy), width: 1.8, dash: style.dash }, marker: { symbol: style.symbol, size: 9, color: colour(policy), line: { color: colour(policy), width: style.symbol.includes("thin") ? 2 : 0 } },
      error_y: bars ? { type: "data", symmetric: false, array: rows.map((r) => (r.high === null ? 0 : r.high - r.mean)), arrayminus: rows.map((r) => (r.low === null ? 0 : r.mean - r.low)), color: colour(policy), thickness: 1, width: 0 } : undefined,
    };
  }

  function quality(task, element) {
    const points = task.full ? [task.full, ...task.rows] : task.rows;
    const [least, most] = [Math.min(...points.map(along)), Math.max(...points.map(along))];
    const room = (most - least || most || 1) * 0.12;
    const range = [Math.max(0, least < 0.4 * most ? 0 : least - room), most + room];
    const names = Object.keys(data.styles).filter((p) => !hidden.has(p));
    const apart = (policy) => (names.indexOf(policy) - (names.length - 1) / 2) * (range[1] - range[0]) * Math.min(0.005, 0.04 / names.length);
    const front = points.filter((p) => task.front.includes(p.name)).sort((a, b) => along(a) - along(b));
    const traces = [{ x: front.map(along), y: front.map((p) => p.mean), mode: "lines", hoverinfo: "skip", line: { color: css("--soft"), width: 1.6, dash: "dot", shape: "hv" } }];
    if (task.full) traces.push({ x: [along(task.full)], y: [task.full.mean], mode: "markers", marker: { symbol: "line-ns-open", size: 11, color: css("--ink") }, text: [task.full.text], hovertemplate: "%{text}<extra></extra>" });
    for (const [policy, style] of Object.entries(data.styles)) {
      const rows = task.rows.filter((r) => r.policy === policy && !hidden.has(policy)).sort((a, b) => along(a) - along(b));
      if (rows.length) traces.push(curve(policy, style, rows, rows.map((r) => along(r) + apart(policy)), task.says_nothing ? 0.45 : 1));
    }
    Plotly.react(element, traces, layout({ shapes: whole(task), xtitle: titles[axis], xaxis: { range, nticks: 6, tickformat: axis === "bytes" ? "" : ".0%" }, yaxis: upwards(task) }), options);
  }

  function sweep(tasks, element) {
    const full = tasks.filter((t) => t.full);
    const names = Object.keys(data.styles).filter((p) => !hidden.has(p));
    const apart = (policy) => 1 + (names.indexOf(policy) - (names.length - 1) / 2) * Math.min(0.012, 0.1 / names.length);
    const traces = [curve("full", { dash: "solid", symbol: "line-ew-open" }, full.map((t) => t.full), full.map((t) => t.length), 1)];
    for (const policy of names) {
      const found = tasks.map((t) => [t, t.rows.find((r) => r.policy === policy && r.budget === budget)]).filter(([, r]) => r);
      if (found.length) traces.push(curve(policy, data.styles[policy], found.map(([, r]) => r), found.map(([t]) => t.length * apart(policy)), 1));
    }
    const ends = [data.lengths[0] / 1.15, data.lengths[data.lengths.length - 1] * 1.15].map(Math.log10);
    Plotly.react(element, traces, layout({ xtitle: "tokens of the context", xaxis: { type: "log", range: ends, tickvals: data.lengths, ticktext: data.lengths.map(String) }, yaxis: upwards(tasks[0]) }), options);
  }

  function bars(key, title, digits, element) {
    const rows = data.speed.filter((s) => s[key] !== null).reverse();
    if (!rows.length) { element.parentElement.hidden = true; return; }
    Plotly.react(element, [{
      type: "bar", orientation: "h", y: rows.map((r) => r.name), x: rows.map((r) => r[key]), marker: { color: rows.map((r) => colour(r.policy)), opacity: 0.85 },
      text: rows.map((r) => r[key].toFixed(digits)), textposition: "auto", insidetextanchor: "end", hovertemplate: "%{y}: %{x:.3g}<extra></extra>", cliponaxis: false,
    }], layout({ height: 60 + 21 * rows.length, bargap: 0.25, xtitle: title, margin: { l: 8, r: 26, t: 6, b: 40 }, xaxis: { rangemode: "tozero" }, yaxis: { automargin: true, gridcolor: "rgba(0,0,0,0)", tickfont: { size: 11, color: css("--ink") } } }), options);
  }

  function byLayer(element) {
    const { full, rows } = data.layers;
    const size = (bytes) => (bytes >= 2 ** 20 ? `${(bytes / 2 ** 20).toPrecision(3)} MiB` : `${(bytes / 2 ** 10).toPrecision(3)} KiB`);
    const share = (row) => row.bytes.map((b, i) => (full[i] ? b / full[i] : null));
    Plotly.react(element, [{
      type: "heatmap", x: full.map((_, i) => i), y: rows.map((r) => r.name), z: rows.map(share), zmin: 0, zmax: 1, xgap: 1, ygap: 1,
      colorscale: [[0, css("--card")], [1, css("--accent")]], colorbar: { thickness: 8, tickformat: ".0%", len: 1, tickfont: { size: 11, color: css("--soft") }, outlinewidth: 0 },
      text: rows.map((r) => r.bytes.map((b, i) => `${size(b)} of ${size(full[i])}`)), hovertemplate: "%{y}, layer %{x}: %{z:.0%}<br>%{text}<extra></extra>",
    }], layout({ height: 80 + 18 * rows.length, margin: { l: 8, r: 8, t: 6, b: 40 }, xtitle: "layer", xaxis: { dtick: full.length > 24 ? 4 : 1, showgrid: false, zeroline: false }, yaxis: { automargin: true, autorange: "reversed", showgrid: false, tickfont: { size: 11, color: css("--ink") } } }), options);
  }

  // -- what was kept of the prompt ------------------------------------------------------------------------------------
  const inside = (spans, i) => spans.some(([a, b]) => i >= a && i < b);
  const part = (digit) => (digit === "0" ? "held by no head" : digit === "9" ? "held by every head" : `held by about ${Math.round(Number(digit) / 0.08)}% of heads`);

  function words(kept, cell, only) {
    const found = [];
    for (let i = 0; i < kept.pieces.length; ) {
      const [digit, answer, start] = [cell.shades[i], inside(kept.spans, i), i];
      let text = "";
      while (i < kept.pieces.length && cell.shades[i] === digit && inside(kept.spans, i) === answer) text += kept.pieces[i++];
      const where = i - start === 1 ? `token ${start}` : `tokens ${start} to ${i - 1}`;
      if (only && digit === "0") found.push(`<span class="cut" title="${where}: ${part(digit)}"> ⋯ </span>`);
      else found.push(`<span class="s${digit}${answer ? " answer" : ""}" title="${where}: ${part(digit)}">${escape(text)}</span>`);
    }
    return found.join("");
  }

  function strip(kept, cell) {
    const wide = cell.bins[0].length;
    const paths = {};
    cell.bins.forEach((bins, row) => {
      for (let i = 0; i < wide; ) {
        const [level, start] = [bins[i], i];
        while (i < wide && bins[i] === level) i++;
        if (level !== "0") (paths[level] = paths[level] || []).push(`M${start} ${row}h${i - start}v1h-${i - start}z`);
      }
    });
    const rows = cell.bins.length;
    const scale = wide / kept.tokens;
    const spans = kept.spans.map(([a, b]) => `<rect x="${(a * scale).toFixed(2)}" width="${Math.max((b - a) * scale, 0.5).toFixed(2)}" y="0" height="${rows}" class="span"/>`);
    const high = (rows <= 8 ? 10 : rows <= 24 ? 5 : 3) * rows;
    const named = cell.layers.length <= 4 ? cell.layers.join(", ") : `${cell.layers[0]} to ${cell.layers[rows - 1]}`;
    return `<div class="strip" data-policy="${escape(cell.policy)}"><span>${escape(cell.name)}<small>layer${rows > 1 ? "s" : ""} ${named}, ${Math.round(100 * cell.held)}% held</small></span>`
      + `<svg viewBox="0 0 ${wide} ${rows}" preserveAspectRatio="none" height="${high}" role="img" aria-label="positions kept by ${escape(cell.name)}">${Object.entries(paths).map(([level, d]) => `<path d="${d.join("")}" opacity="${level / 8}"/>`).join("")}${spans.join("")}</svg></div>`;
  }

  function showKept() {
    const kept = data.kept[at("kept-task").selectedIndex];
    const cell = kept.cells[at("kept-name").selectedIndex];
    const text = at("kept-text");
    text.hidden = at("kept-key").hidden = !kept.pieces.length || !cell.shades;
    const none = cell.shades ? [...cell.shades].filter((d) => d === "0").length : 0;
    const every = cell.shades ? [...cell.shades].filter((d) => d === "9").length : 0;
    at("kept-says").textContent = `${kept.task}, example ${kept.example}: ${cell.name} holds ${Math.round(100 * cell.held)}% of ${kept.tokens} tokens in the eligible layers`
      + (cell.shades ? `; ${every} are held by every head, ${none} by none.` : ".");
    at("kept").dataset.policy = cell.policy;
    if (text.hidden) return;
    text.innerHTML = words(kept, cell, at("kept-only").checked);
    const answer = text.querySelector(".answer");
    text.scrollTop = answer ? answer.offsetTop - text.clientHeight / 2 : 0;
  }

  function showTask() {
    const kept = data.kept[at("kept-task").selectedIndex];
    const before = at("kept-name").value;
    at("kept-name").innerHTML = kept.cells.map((c) => `<option>${escape(c.name)}</option>`).join("");
    const same = kept.cells.findIndex((c) => c.name === before);
    const other = kept.cells.findIndex((c) => c.policy !== "random");
    at("kept-name").selectedIndex = same >= 0 ? same : Math.max(0, other);
    showKept();
    at("strips").innerHTML = kept.cells.map((c) => strip(kept, c)).join("") + `<div class="strip"><span></span><div class="ends"><b>token 0</b><b>${kept.tokens}</b></div></div>`;
  }

  // -- the parts of the page ------------------------------------------------------------------------------------------
  function panel(parent, heading, below, warning) {
    const box = document.createElement("div");
    box.innerHTML = `<h3>${escape(heading)}</h3><p>${escape(below)}</p>${warning ? `<p class="tag">says nothing here: ${escape(warning)}</p>` : ""}<div class="plot"></div>`;
    parent.append(box);
    return box.querySelector(".plot");
  }
  const explains = (task) => (task.measure === "nll" ? "perplexity; lower is better, so the axis points down" : "share of right answers");

  function panels() {
    at("quality").replaceChildren();
    for (const task of data.tasks.filter((t) => t.length === length)) plot(panel(at("quality"), task.name, explains(task), task.says_nothing), (element) => quality(task, element));
  }

  const marks = {
    circle: '<circle r="4.6"/>', square: '<path d="M-4.2-4.2h8.4v8.4h-8.4z"/>', diamond: '<path d="M0-6l6 6-6 6-6-6z"/>', "triangle-up": '<path d="M0-5.5l5.6 9.6H-5.6z"/>',
    "triangle-down": '<path d="M0 5.5l5.6-9.6H-5.6z"/>', cross: '<path d="M-2-5.5h4v3.5h3.5v4H2v3.5h-4V2h-3.5v-4H-2z"/>', hexagon: '<path d="M-2.7-4.7h5.4L5.4 0 2.7 4.7h-5.4L-5.4 0z"/>',
    star: '<path d="M0-6l1.6 3.9 4.2.3-3.2 2.7 1 4.1L0 2.8-3.6 5l1-4.1-3.2-2.7 4.2-.3z"/>', "x-thin": '<path d="M-4-4l8 8m0-8l-8 8" stroke-width="2" fill="none"/>',
  };
  function chips() {
    all(".chip[data-policy]").forEach((chip) => {
      const [mark, style] = [chip.querySelector("svg"), data.styles[chip.dataset.policy]];
      mark.innerHTML = marks[style.symbol.replace("-open", "")] || marks.circle;
      mark.setAttribute("fill", style.symbol.endsWith("-open") ? "none" : colour(chip.dataset.policy));
      mark.setAttribute("stroke", style.symbol.includes("-open") || style.symbol.includes("thin") ? colour(chip.dataset.policy) : "none");
    });
  }

  function choice(name, take) {
    const buttons = all(`button[data-${name}]`);
    buttons.forEach((button) => button.addEventListener("click", () => {
      buttons.forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
      take(button.dataset[name]);
    }));
  }
  choice("axis", (value) => { axis = value; redraw(); });
  choice("length", (value) => { length = Number(value); panels(); });
  choice("budget", (value) => { budget = value; redraw(); });
  all(".chip[data-policy]").forEach((chip) => chip.addEventListener("click", () => {
    const policy = chip.dataset.policy;
    if (!hidden.delete(policy)) hidden.add(policy);
    chip.setAttribute("aria-pressed", String(!hidden.has(policy)));
    redraw();
  }));

  all(".sort").forEach((button) => button.addEventListener("click", () => {
    const head = button.closest("th");
    const up = head.getAttribute("aria-sort") === "descending";
    all(".board th[aria-sort]").forEach((th) => th.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const value = (row) => Number(row.children[head.cellIndex].dataset.value);
    body.append(...[...body.rows].sort((a, b) => (up ? value(a) - value(b) : value(b) - value(a))));
  }));

  const folded = () => all("details:not([open])");
  let opened = [];
  window.addEventListener("beforeprint", () => { opened = [...folded()]; opened.forEach((d) => { d.open = true; }); });
  window.addEventListener("afterprint", () => opened.forEach((d) => { d.open = false; }));
  dark.addEventListener("change", () => { chips(); redraw(); });

  function begin() {
    chips();
    panels();
    if (data.lengths.length > 1) {
      for (const task of new Set(data.tasks.map((t) => t.task))) {
        const mine = data.tasks.filter((t) => t.task === task);
        plot(panel(at("sweep"), task, explains(mine[0])), (element) => sweep(mine, element));
      }
    }
    if (data.kept.length) {
      at("kept-task").innerHTML = data.kept.map((k) => `<option>${escape(k.task)}</option>`).join("");
      at("kept-task").addEventListener("change", showTask);
      at("kept-name").addEventListener("change", showKept);
      at("kept-only").addEventListener("change", showKept);
      showTask();
    }
    if (data.layers) plot(document.querySelector("#by-layer .plot"), byLayer);
    else at("by-layer").hidden = true;
    plot(document.querySelector("#rate .plot"), (element) => bars("rate", "tokens per second", 1, element));
    plot(document.querySelector("#first .plot"), (element) => bars("first", "seconds", 2, element));
    performance.mark("ready");
    (window.requestIdleCallback || setTimeout)(load); // so that a plot that is scrolled to is there at once
  }
  if (document.readyState === "complete") begin();
  else window.addEventListener("load", () => setTimeout(begin, 0));
})();
