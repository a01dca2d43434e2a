// Interaction of the report: theme, sorting, copying, charts. Text of the runs is inserted as text, never as markup.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const root = document.documentElement;

  function make(name, attributes = {}, ...children) {
    const svg = /^(svg|g|path|line|circle|text|rect)$/.test(name);
    const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // --- light and dark ---

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const labelTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; labelTheme(); });
  dark.addEventListener("change", labelTheme);
  theme.hidden = false;
  labelTheme();

  // Warnings are printed in full: a reader of paper cannot open them.
  addEventListener("beforeprint", () => { for (const part of all(".warning details")) part.open = true; });

  // --- tables ---

  const value = (cell) => (cell.dataset.value ? Number(cell.dataset.value) : NaN);

  // The first click sorts numbers in descending order (best on top) and names in ascending order. Cells without a
  // number stay at the bottom.
  function sort(table, heading) {
    const at = [...heading.parentNode.children].indexOf(heading);
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const numeric = rows.some((row) => row.cells[at].tagName === "TD" && !Number.isNaN(value(row.cells[at])));
    const [first, second] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
    const direction = heading.getAttribute("aria-sort") === first ? second : first;
    const sign = direction === "ascending" ? 1 : -1;
    rows.sort((a, b) => {
      if (!numeric) return sign * a.cells[at].textContent.localeCompare(b.cells[at].textContent);
      const [x, y] = [value(a.cells[at]), value(b.cells[at])];
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return sign * (x - y);
    });
    body.append(...rows);
    for (const other of heading.parentNode.children) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", direction);
  }

  for (const table of all("table.sortable")) {
    for (const heading of table.tHead.rows[table.tHead.rows.length - 1].cells) {
      const button = make("button", { type: "button" }, ...heading.childNodes);
      button.addEventListener("click", () => sort(table, heading));
      heading.replaceChildren(button);
      heading.setAttribute("aria-sort", "none");
    }
  }

  // --- copy ---

  for (const button of all("button.copy")) {
    const label = button.textContent;
    const source = button.dataset.from;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const from = document.getElementById(source);
      const text = from.href ? decodeURIComponent(from.href.slice(from.href.indexOf(",") + 1)) : from.textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not permitted";
      }
      setTimeout(() => { button.textContent = label; }, 2000);
    });
  }

  // --- charts ---

  const MIN_SPAN = 10; // smallest range of an axis of percentages
  const MARGIN = { left: 44, right: 12, top: 26, bottom: 34 };

  function ticks(low, high, about) {
    const raw = (high - low) / about;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
    const out = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) out.push(i * step);
    return out;
  }

  const short = (number) => String(Number(number.toPrecision(6)));

  // One panel. `lines` are {row, name, colour, dash, x, y, spread}; the unit of the measure follows each value.
  class Chart {
    constructor(figure, label) {
      this.figure = figure;
      this.label = label;
      this.tip = make("div", { class: "tip", role: "status" });
      this.tip.hidden = true;
      figure.tabIndex = 0;
      figure.setAttribute("role", "group");
      figure.addEventListener("pointermove", (event) => this.onPointer(event));
      figure.addEventListener("pointerdown", (event) => this.onPointer(event));
      figure.addEventListener("pointerleave", () => this.clearRound());
      figure.addEventListener("blur", () => this.clearRound());
      figure.addEventListener("keydown", (event) => this.onKey(event));
      new ResizeObserver(() => { if (figure.clientWidth !== this.width) this.draw(); }).observe(figure);
    }

    show(lines, measure) {
      this.lines = lines;
      this.measure = measure;
      this.draw();
    }

    draw() {
      if (!this.lines) return;
      this.width = this.figure.clientWidth || 640;
      this.height = Math.round(Math.min(380, Math.max(240, this.width * 0.6)));
      this.xs = [...new Set(this.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
      const values = this.lines.flatMap((l) => l.y.flatMap((y, i) => [y - l.spread[i], y + l.spread[i]]));
      let [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
      if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
      const gap = 0.04 * (high - low);
      [low, high] = [low >= 0 ? Math.max(0, low - gap) : low - gap, high + gap];
      if (this.measure.scale === 100 && high - low < MIN_SPAN) { // a narrower axis would exaggerate
        const middle = (low + high) / 2 - MIN_SPAN / 2;
        low = low >= 0 ? Math.max(0, middle) : middle;
        high = low + MIN_SPAN;
      }
      const [first, last] = this.xs.length > 1 ? [this.xs[0], this.xs[this.xs.length - 1]] : [0, (this.xs[0] ?? 1) * 2];
      const plotWidth = this.width - MARGIN.left - MARGIN.right;
      const plotHeight = this.height - MARGIN.top - MARGIN.bottom;
      this.px = (x) => MARGIN.left + (plotWidth * (x - first)) / (last - first);
      this.py = (y) => MARGIN.top + plotHeight * (1 - (y - low) / (high - low));
      const viewBox = `0 0 ${this.width} ${this.height}`;
      const svg = make("svg", { viewBox, role: "img", "aria-label": this.description() });
      for (const y of ticks(low, high, plotHeight / 35)) {
        const at = this.py(y);
        svg.append(make("line", { class: "rule", x1: MARGIN.left, x2: this.width - MARGIN.right, y1: at, y2: at }));
        svg.append(make("text", { x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" }, short(y)));
      }
      for (const x of ticks(first, last, plotWidth / 70).filter(Number.isInteger)) {
        svg.append(make("text", { x: this.px(x), y: this.height - 18, "text-anchor": "middle" }, short(x)));
      }
      const start = low > 0 ? ` (the axis does not start at 0)` : "";
      const title = `${this.measure.name}${this.measure.unit && `,${this.measure.unit}`}${start}`;
      svg.append(make("text", { x: 0, y: 12 }, title));
      const middle = MARGIN.left + plotWidth / 2;
      svg.append(make("text", { x: middle, y: this.height - 3, "text-anchor": "middle" }, "round"));
      for (const line of this.lines) svg.append(this.series(line));
      this.marks = make("g");
      svg.append(this.marks);
      this.figure.replaceChildren(svg, this.tip);
    }

    series(line) {
      const at = (i, shift) => `${this.px(line.x[i]).toFixed(1)},${this.py(line.y[i] + shift).toFixed(1)}`;
      const group = make("g", { class: "series", "data-row": line.row, style: `--colour:${line.colour}` });
      if (line.spread.some((s) => s > 0)) {
        const upper = line.x.map((_, i) => at(i, line.spread[i]));
        const lower = line.x.map((_, i) => at(i, -line.spread[i])).reverse();
        group.append(make("path", { class: "band", d: `M${[...upper, ...lower].join("L")}Z` }));
      }
      const d = `M${line.x.map((_, i) => at(i, 0)).join("L")}`;
      group.append(make("path", { class: "line", d, "stroke-dasharray": line.dash }));
      if (line.x.length === 1) group.append(this.dot(line, 0));
      return group;
    }

    dot(line, i) {
      return make("circle", { class: "dot", r: 4, cx: this.px(line.x[i]), cy: this.py(line.y[i]) });
    }

    description() {
      const ends = this.lines.map((l) => `${l.name} ${this.number(l.y[l.y.length - 1])}`);
      return `${this.label}: ${this.measure.name} by round; at the end ${ends.join(", ") || "no line is shown"}`;
    }

    number(y) {
      return y.toFixed(this.measure.digits) + this.measure.unit;
    }

    onPointer(event) {
      const x = event.clientX - this.figure.getBoundingClientRect().left;
      let best = null;
      for (const round of this.xs) {
        if (best === null || Math.abs(this.px(round) - x) < Math.abs(this.px(best) - x)) best = round;
      }
      this.showRound(best);
    }

    onKey(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") this.clearRound();
      if (step === undefined) return;
      event.preventDefault();
      const now = this.round === undefined ? -1 : this.xs.indexOf(this.round);
      this.showRound(this.xs[Math.max(0, Math.min(this.xs.length - 1, now + step))]);
    }

    showRound(round) {
      if (round === null || round === undefined) return;
      this.round = round;
      const found = this.lines.map((line) => [line, line.x.indexOf(round)]).filter(([, i]) => i >= 0);
      found.sort(([a, i], [b, j]) => b.y[j] - a.y[i]);
      const at = this.px(round);
      const guide = { class: "guide", x1: at, x2: at, y1: MARGIN.top, y2: this.height - MARGIN.bottom };
      this.marks.replaceChildren(make("line", guide));
      const values = found.map(([line, i]) => {
        const group = make("g", { class: "series", style: `--colour:${line.colour}` }, this.dot(line, i));
        this.marks.append(group);
        const spread = line.spread[i] > 0 ? ` \u00b1 ${line.spread[i].toFixed(this.measure.digits)}` : "";
        return make("p", {}, make("span", {}, line.name), make("b", {}, this.number(line.y[i]) + spread));
      });
      this.tip.replaceChildren(make("p", {}, `Round ${round}`), ...values);
      this.tip.hidden = false;
      const right = at > this.width / 2;
      this.tip.style.left = right ? "" : `${at + 12}px`;
      this.tip.style.right = right ? `${this.width - at + 12}px` : "";
    }

    clearRound() {
      this.round = undefined;
      this.marks.replaceChildren();
      this.tip.hidden = true;
    }
  }

  // --- studies: toggles, measures, panels ---

  for (const article of all("article[data-study]")) {
    const data = JSON.parse(document.getElementById(article.dataset.study).textContent);
    const charts = all(".chart", article).map((figure, i) => new Chart(figure, data.panels[i].name));
    const boxes = all(".toggles input", article);
    const measures = all(".measures input", article);
    const refresh = () => {
      const hidden = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
      for (const element of all("[data-row]", article)) element.hidden = hidden.has(element.dataset.row);
      const measure = data.measures[Number(measures.find((radio) => radio.checked)?.value ?? 0)];
      charts.forEach((chart, i) => {
        const lines = data.panels[i].lines[measure.key] ?? [];
        const shown = lines.filter((line) => !hidden.has(String(line.row)));
        chart.show(shown.map((line) => ({ ...data.rows[line.row], ...line, x: data.rounds[line.x] })), measure);
      });
    };
    for (const input of [...boxes, ...measures]) input.addEventListener("change", refresh);
    for (const part of all(".toggles, .live", article)) part.hidden = false;
    for (const figure of all(".static", article)) figure.remove();
    refresh();
  }
})();
