// The page's only script: see viewer.py for the data, viewer.html for the elements.
"use strict";
const $ = (id) => document.getElementById(id);
function make(tag, name = "", ...inside) {
  const element = document.createElement(tag);
  element.className = name;
  element.append(...inside.flatMap(pieces));
  return element;
}
function pieces(inside) {  // strings become text nodes, what is not seen in them boxes
  if (typeof inside !== "string") return [inside];
  return inside.split(UNSEEN).map((text, k) => k % 2 ? unseen(text) : text).filter(Boolean);
}
function unseen(character) {  // still holds it, so that the text of the page is that of the tokens
  const mark = document.createElement("mark");
  mark.textContent = character;
  mark.dataset.code = code(character);
  return mark;
}
const alone = (text) => make("bdi", "", text);
const code = (character) =>
  `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
const plain = (text) => text.replace(UNSEEN, (character) => `<${code(character)}>`);
const SET = JSON.parse($("set").textContent), UNSEEN = new RegExp(`(${SET.unseen})`, "gu");
const PARTS = document.getElementsByClassName("part");
const SEGMENTS = ["prompt", "think", "tool call", "tool response", "answer", "report", "template"];
const TINTS = ["prompt", "think", "call", "response", "answer", "answer", "prompt"];
const VIEWS = SET.names.length > 1 ? [...SET.names, "difference", "side by side"] : SET.names;
const CHUNK = 600;  // tokens that are drawn at a time
const state = { at: -1, turn: 0, token: -1, near: -1, view: 0, query: "", filters: {} };
let it = null;  // the trajectory that is shown

// ---------------------------------------------------------------- a trajectory from its columns

const HALF = Float32Array.from({ length: 65536 }, (_, bits) => {  // float16 by its bits
  const sign = bits >> 15 ? -1 : 1, power = bits >> 10 & 31, part = bits & 1023;
  if (power === 31) return part ? NaN : sign * Infinity;
  return sign * (power ? 2 ** (power - 15) * (1 + part / 1024) : 2 ** -24 * part);
});
function column([kind, base64]) {
  const text = atob(base64), raw = new Uint8Array(text.length);
  for (let i = 0; i < raw.length; i++) raw[i] = text.charCodeAt(i);
  const type = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f2: Uint16Array }[kind];
  const values = new type(raw.buffer);
  return kind === "f2" ? Float32Array.from(values, (bits) => HALF[bits]) : values;
}
function load(at) {
  const part = JSON.parse(PARTS[at].textContent), t = { ...part, row: SET.rows[at], starts: [0] };
  for (const name of ["ids", "turns", "segments", "generated"]) t[name] = column(part[name]);
  const n = t.n = t.ids.length;
  t.rank = new Int32Array(n);  // which of the sampled tokens it is, -1 for none
  for (let i = 0, sampled = 0; i < n; i++) {
    t.rank[i] = t.generated[i] ? sampled++ : -1;
    if (i && t.turns[i] !== t.turns[i - 1]) t.starts.push(i);
  }
  for (const side of t.sides) {
    for (const name of ["logprob", "entropy"]) side[name] = side[name] && column(side[name]);
    side.values = t.measure === "entropy" ? side.entropy : side.logprob.map((x) => -x);
    side.sorted = side.values.filter((x) => !Number.isNaN(x)).sort();
    const [k, ids, logp] = side.top ?? [];
    if (k) side.top = { k, ids: column(ids), logp: column(logp) };
  }
  t.text = (i) => SET.texts[t.ids[i]];
  t.blocks = blocks(t);
  return t;
}
function blocks(t) {  // runs of one segment in one turn; a tag goes with what it opens or closes
  const kinds = Array.from(t.segments), found = [], closes = /^<\/|^<\|(im_)?end/;
  const same = (i, j) => i >= 0 && j < t.n && t.turns[i] === t.turns[j];
  for (let i = t.n - 1; i >= 0; i--)
    if (kinds[i] === 6 && same(i, i + 1) && !closes.test(t.text(i))) kinds[i] = kinds[i + 1];
  for (let i = 0; i < t.n; i++)
    if (kinds[i] === 6 && same(i - 1, i)) kinds[i] = kinds[i - 1];
    else if (kinds[i] === 6 && same(i, i + 1)) kinds[i] = kinds[i + 1];
  for (let i = 0, b = null; i < t.n; i++) {
    const more = b && same(i - 1, i) && kinds[i] === b.kind && i - b.start < CHUNK;
    if (more) b.end = i + 1;
    else found.push(b = { start: i, end: i + 1, kind: kinds[i],
      turn: t.starts.findLastIndex((start) => start <= i) });
  }
  for (const b of found) if (b.kind === 3)
    b.event = t.events.find((event) => event.start < b.end && b.start < event.end);
  return found;
}
function value(i, view) {  // what is coloured; NaN where it is not known
  const g = it.rank[i], of = (side) => it.sides[side].values[g];
  if (g < 0 || !it.measure) return NaN;
  return view === 2 ? of(1) - of(0) : of(view === 1 ? 1 : 0);
}

// ---------------------------------------------------------------- colours

const dark = matchMedia("(prefers-color-scheme: dark)");
const SCALES = {  // away from the paper in even steps: cividis; blue for less, orange for more
  light: [["transparent", "#fcf0b0", "#e5d266", "#b1a570", "#7d7c78", "#47526c", "#00224e"],
    ["#08519c", "#5c9bd1", "#bdd7ee", "transparent", "#fdd5a8", "#ee8f3c", "#b34700"], 0.85],
  dark: [["transparent", "#184280", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"],
    ["#7ebcff", "#3d7dc0", "#1f4468", "transparent", "#603a16", "#b8691f", "#ffa94d"], 0.64] };
const palette = () => SCALES[dark.matches ? "dark" : "light"];
const cap = (view) => SET.scale[it.measure]?.[view === 2 ? 1 : 0];
// Square roots, so that small values can be told apart: -1..1 for differences, else 0..1.
const strength = (v, view) => Math.sign(v) * Math.sqrt(Math.min(1, Math.abs(v) / cap(view)));
function shade(x, view) {
  const stops = palette()[view === 2 ? 1 : 0], place = (view === 2 ? (x + 1) / 2 : x) * 6;
  const low = Math.min(5, Math.floor(place)), share = Math.round(100 * (place - low));
  return `color-mix(in srgb, ${stops[low + 1]} ${share}%, ${stops[low]})`;
}

// ---------------------------------------------------------------- the list

const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
function facts(row, mean, ...more) {
  const mark = { right: "✓ ", wrong: "✗ " }[row.outcome] ?? "";
  return [make("b", row.outcome, mark + row.outcome), ...more, count(row.tokens, "token"),
    row.mean === null ? "" : `${mean} ${row.mean.toFixed(2)}`,
    row.calls ? count(row.calls, "call") : "no calls",
    row.errors ? make("span", "error", count(row.errors, "error")) : "",
    row.empties ? `${row.empties} empty` : ""].filter(Boolean).map((one) => make("span", "", one));
}
const items = SET.rows.map((row, at) => {
  const li = make("li", "", make("p", "", row.question || row.id),
    make("p", "soft", ...facts(row, "H")));
  li.title = plain(row.id);
  li.onclick = () => open(at);
  return li;
});
const lower = new Map();  // the whole text of a trajectory, for the search
function fullText(at) {
  if (!lower.has(at)) {
    const ids = column(JSON.parse(PARTS[at].textContent).ids), row = SET.rows[at];
    const text = Array.from(ids, (id) => SET.texts[id]).join("");
    lower.set(at, [row.id, row.question, row.answer, text].join("\n").toLowerCase());
  }
  return lower.get(at);
}
function filter(at = state.at, turn = 0, chosen = -1) {
  const { outcome, status } = state.filters, query = state.query.toLowerCase();
  SET.rows.forEach((row, k) => {
    items[k].hidden = outcome.size && !outcome.has(row.outcome)
      || status.size && !row.status.some((name) => status.has(name))
      || query && !fullText(k).includes(query);
  });
  const shown = visible(), all = items.length;
  $("count").textContent = shown.length < all ? `${shown.length} of ${all} trajectories`
    : all === 1 ? "1 trajectory" : `${all} trajectories`;
  for (const name in state.filters) for (const chip of $(name).children)
    chip.setAttribute("aria-pressed", state.filters[name].has(chip.value));
  $("head").hidden = $("panel").hidden = !shown.length;
  if (shown.includes(at) && at === state.at) drawText();
  else if (shown.includes(at)) open(at, turn, chosen);
  else if (shown.length) open(shown[0]);
  else {
    it = null; state.at = state.token = -1;
    $("text").replaceChildren(make("p", "soft", "No trajectory matches. Take a filter away."));
  }
  remember();
}
const visible = () => [...items.keys()].filter((at) => !items[at].hidden);

// ---------------------------------------------------------------- the strip

function drawStrip() {
  const canvas = $("strip"), width = canvas.clientWidth, css = getComputedStyle(document.body);
  const lanes = state.view === 2 ? [2] : it.sides.map((_, k) => k), g = canvas.getContext("2d");
  const tall = lanes.length > 1 ? 32 : 46, height = 15 + lanes.length * (tall + 4) + 7;
  const columns = Math.min(it.n, width), step = width / columns, gap = step > 4 ? 1 : 0;
  const colour = (name) => css.getPropertyValue(`--${name}`), x = (i) => i / it.n * width;
  const box = (fill, ...place) => { g.fillStyle = fill; g.fillRect(...place); };
  canvas.width = width * devicePixelRatio; canvas.height = height * devicePixelRatio;
  canvas.style.height = `${height}px`;
  g.scale(devicePixelRatio, devicePixelRatio);
  const from = it.starts[state.turn], to = it.starts[state.turn + 1] ?? it.n;
  box(colour("pick"), x(from), 14, x(to) - x(from), height - 14);
  it.best = lanes.map(() => []);
  for (let c = 0; c < columns; c++) {
    const a = Math.floor(c * it.n / columns), b = Math.floor((c + 1) * it.n / columns);
    lanes.forEach((view, k) => {
      let best = a;  // the largest of the tokens that share this column
      for (let i = a; i < b; i++)
        if (!(Math.abs(value(i, view)) <= Math.abs(value(best, view))) && it.rank[i] >= 0) best = i;
      it.best[k][c] = best;
      const s = strength(value(best, view), view), foot = 15 + k * (tall + 4) + tall;
      if (Number.isNaN(s)) return;
      const size = Math.max(2, Math.abs(s) * tall / (view === 2 ? 2 : 1));
      const top = view !== 2 ? foot - size : foot - tall / 2 - (s > 0 ? size : 0);
      box(shade(Math.sign(s) * Math.max(0.2, Math.abs(s)) || 0.2, view), c * step, top, step - gap,
        size);
    });
    box(`color-mix(in srgb, ${colour(TINTS[it.segments[a]])} 92%, ${colour("ink")})`, c * step,
      height - 7, step + 0.5, 7);
  }
  for (const start of it.starts.slice(1)) box(colour("soft"), x(start), height - 11, 1, 11);
  g.font = `13px ${css.fontFamily}`;
  for (const { start, status } of it.events) {  // shapes, not only colours
    g.fillStyle = colour({ ok: "ok", error: "bad", empty: "soft" }[status]);
    g.fillText({ ok: "●", error: "✕", empty: "○" }[status], x(start), 11);
  }
  g.font = `10px ${css.fontFamily}`; g.fillStyle = colour("soft");
  const names = SET.names.map(plain);
  if (lanes.length > 1) lanes.forEach((k) => g.fillText(names[k], 2, 26 + k * (tall + 4)));
  if (state.token >= 0) box(colour("accent"), x(state.token + 0.5) - 1, 13, 2, height - 13);
}
function under(event) {  // the token that gives the column under the mouse its colour
  const box = $("strip").getBoundingClientRect(), lane = event.clientY - box.top > 50 ? 1 : 0;
  const best = it.best[lane] ?? it.best[0], share = (event.clientX - box.left) / box.width;
  return best[Math.min(best.length - 1, Math.floor(share * best.length))];
}

// ---------------------------------------------------------------- the text

const watcher = new IntersectionObserver((seen) => {
  for (const one of seen) if (one.isIntersecting) fill(one.target.block);
}, { root: $("text"), rootMargin: "700px" });

function drawText() {  // empty blocks, each filled when it comes near the window
  const views = state.view === 3 ? [0, 1] : [state.view], line = $("text").clientWidth / 9 - 16;
  watcher.disconnect();
  it.spans = [];
  it.hits = hits();
  it.sections = it.starts.map((start, turn) => {
    const end = it.starts[turn + 1] ?? it.n, sampled = it.generated.subarray(start, end);
    return make("section", "", make("h3", "", `Turn ${turn + 1}`, make("span", "soft",
      `${count(end - start, "token")}, ${sampled.reduce((a, b) => a + b, 0)} sampled`)));
  });
  for (const b of it.blocks) {
    const { tool, status, error } = b.event ?? {}, bad = status && status !== "ok";
    const label = make("p", "", SEGMENTS[b.kind]);
    const kind = ["", status, tool].includes(error) ? [] : [" (", alone(error), ")"];  // of error
    if (tool) label.append(make("span", status, alone(tool), ` · ${status}`, ...kind));
    b.boxes = views.map((view) => Object.assign(make("div", "tokens"), { view }));
    b.element = make("div", views.length > 1 ? "block both" : "block", label, ...b.boxes);
    b.element.style.setProperty("--tint", `var(--${bad ? "failed" : TINTS[b.kind]})`);
    b.element.block = b;
    let letters = 0;
    for (let i = b.start; i < b.end; i++) letters += it.text(i).length;
    b.element.style.minHeight = `${Math.ceil(letters * views.length / line) * 21}px`;
    it.sections[b.turn].append(b.element);
    watcher.observe(b.element);
  }
  $("text").replaceChildren(...it.sections);
  for (const b of it.blocks.slice(0, 4)) fill(b);
  showTurn(state.turn);
}
function fill(b) {
  if (it.spans[b.start]) return;
  for (let i = b.start; i < b.end; i++) it.spans[i] = b.boxes.map((box) => token(i, box.view));
  b.boxes.forEach((box, k) =>
    box.replaceChildren(...together(it.spans.slice(b.start, b.end).map((some) => some[k]))));
  b.element.style.minHeight = "";
}
const RIGHT_TO_LEFT =  // the scripts' blocks
  /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
function together(spans) {  // words from right to left, and what is between them, by themselves
  const out = [];
  let run = null, between = [];
  for (const span of spans) {
    const text = span.textContent;
    if (RIGHT_TO_LEFT.test(text)) {
      if (run) run.append(...between, span);
      else out.push(run = make("bdi", "", span));
      between = [];
    } else if (run && !/\p{L}|\n/u.test(text)) between.push(span);
    else {
      out.push(...between, span);
      run = null;
      between = [];
    }
  }
  return [...out, ...between];
}
function token(i, view) {
  const text = it.text(i), v = value(i, view), names = { given: !it.generated[i],
    tag: it.segments[i] === 6, break: /^\n+$/.test(text), hit: it.hits.has(i),
    focus: i === state.token };
  const span = make("i", Object.keys(names).filter((name) => names[name]).join(" "), text);
  span.dataset.i = i;
  if (Number.isNaN(v) || !v) return span;
  const s = strength(v, view);
  span.style.background = shade(s, view);
  if (Math.abs(s) > (view === 2 ? palette()[2] : 0.64)) span.style.color = "var(--paper)";
  return span;
}
function hits() {  // the tokens that the search finds
  const found = new Set(), query = state.query.toLowerCase(), ends = [];
  if (!query) return found;
  let text = "";
  for (let i = 0; i < it.n; i++) ends.push((text += it.text(i).toLowerCase()).length);
  for (let at = text.indexOf(query), i = 0; at >= 0; at = text.indexOf(query, at + 1)) {
    while (ends[i] <= at) i++;
    for (let j = i; j < it.n && (!j || ends[j - 1] < at + query.length); j++) found.add(j);
  }
  return found;
}
function point(name, i) {  // name: "near" the mouse, or the "token" that was chosen
  const old = state[name], style = name === "near" ? "near" : "focus";
  if (old === i && name === "near") return;
  state[name] = i;
  for (const span of it.spans[old] ?? []) span.classList.remove(style);
  for (const span of it.spans[i] ?? []) span.classList.add(style);
  drawPanel();
  if (name === "token") { drawStrip(); remember(); }
}
function jump(i) {  // choose a token and bring it into view
  const b = it.blocks.findLastIndex((block) => block.start <= i);
  if (!it.blocks[b] || i >= it.n) return;
  for (const near of it.blocks.slice(Math.max(0, b - 2), b + 3)) fill(near);
  it.spans[i][0].scrollIntoView({ block: "center" });
  point("near", -1);
  point("token", i);
}
function jumpUncertain(by) {  // to the next among the fifth of the sampled tokens that are most so
  const { values, sorted } = it.sides[state.view === 1 ? 1 : 0];
  for (let i = state.token + by; i >= 0 && i < it.n; i += by)
    if (values[it.rank[i]] >= sorted[Math.floor(0.8 * sorted.length)]) return jump(i);
}
function showTurn(turn) {
  $("text").scrollTop = it.sections[Math.max(0, Math.min(it.sections.length - 1, turn))].offsetTop;
  turnChanged();
}
function turnChanged() {
  const top = $("text").scrollTop + 60, last = it.sections.length - 1;
  state.turn = Math.max(0, it.sections.findLastIndex((section) => section.offsetTop <= top));
  $("at").textContent = `turn ${state.turn + 1} of ${last + 1}`;
  $("back").disabled = state.turn === 0;
  $("next").disabled = state.turn === last;
  drawStrip(); remember();
}

// ---------------------------------------------------------------- the panel

const minus = (x) => `${x}`.replace("-", "−").replace("Infinity", "∞");
const three = (x) => Number.isNaN(x ?? NaN) ? "–" : minus(x.toPrecision(3));
const percent = (p) => Number.isNaN(p) ? "–" : `${three(100 * p)}%`;
const readable = (text) =>
  text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣") || "(nothing)";

function numbers({ logprob, entropy, values, sorted }, g) {
  const less = sorted.findIndex((x) => x >= values[g]);
  return [three(logprob[g]), percent(Math.exp(logprob[g])), three(entropy?.[g]),
    percent(less < 0 ? NaN : less / sorted.length)];
}
function table(rows) {
  const head = SET.names.length > 1 ? [["", ...SET.names]] : [];
  return make("table", "", ...[...head, ...rows].map(([name, ...cells], k) => make("tr", "",
    make("th", "", name), ...cells.map((text) => make(k < head.length ? "th" : "td", "", text)))));
}
function alternatives({ top, logprob }, i, name) {
  const g = it.rank[i], rows = [];
  for (let k = g * top.k; k < (g + 1) * top.k; k++) rows.push([top.ids[k], Math.exp(top.logp[k])]);
  if (!rows.some(([id]) => id === it.ids[i])) rows.push([it.ids[i], Math.exp(logprob[g])]);
  return make("div", "", make("h3", "", "most probable", make("span", "soft",
    it.sides.length > 1 ? name : "")),
    ...rows.filter(([, p]) => p !== 0).map(([id, p]) => {
      const bar = make("div", id === it.ids[i] ? "bar tokens drawn" : "bar tokens",
        make("span", "", readable(SET.texts[id])), make("span", "", percent(p)));
      bar.style.setProperty("--p", `${100 * (p || 0)}%`);
      return bar;
    }));
}
function experts(i) {
  const [layers, k] = it.sides.find((side) => side.experts).experts;
  const chosen = (side, layer) => {
    const some = (side.routes ??= column(side.experts[2]))
      .subarray((i * layers + layer) * k, (i * layers + layer + 1) * k);
    return some[0] === 65535 ? "–" : some.join(" ");  // no forward pass has read the token
  };
  return make("div", "", make("h3", "", "experts"), table([...Array(layers).keys()].map((layer) =>
    [`layer ${layer}`, ...it.sides.map((side) => side.experts ? chosen(side, layer) : "–")])));
}
function drawPanel() {
  const i = state.near >= 0 ? state.near : state.token, g = it.rank[i];
  if (i < 0) return $("panel").replaceChildren(make("p", "soft", "Point at a token to see how "
    + "probable it was, what else could have been said, and its experts. A click keeps it here."));
  const names = ["log-prob", "probability", "entropy", `share with less ${it.measure}`];
  const sides = it.sides.map((side) => numbers(side, g));
  const parts = [make("div", "", make("p", "mono", readable(it.text(i))), make("p", "soft",
    `${SEGMENTS[it.segments[i]]}, turn ${it.turns[i] + 1}, ${g < 0 ? "given" : "sampled"}`),
  make("p", "soft", `id ${SET.ids[it.ids[i]]}, position ${i.toLocaleString("en")}`))];
  if (g >= 0) parts.push(table(names.map((name, k) => [name, ...sides.map((side) => side[k])])),
    ...it.sides.flatMap((side, k) => side.top ? alternatives(side, i, SET.names[k]) : []));
  if (it.sides.some((side) => side.experts)) parts.push(experts(i));
  $("panel").replaceChildren(...parts);
}

// ---------------------------------------------------------------- opening and remembering

function open(at, turn = 0, chosen = -1) {
  items[state.at]?.removeAttribute("aria-current");
  Object.assign(state, { at, turn, token: -1, near: -1 });
  it = load(at);
  const { row } = it;
  document.querySelector("h2").replaceChildren(...pieces(row.question || row.id));
  const said = (what, text) => make("bdi", "", `${what}: `, alone(text));
  $("facts").replaceChildren(...facts(row, "mean entropy", row.answer && said("answer", row.answer),
    row.expected && row.outcome !== "right" && said("expected", row.expected)));
  items[at].setAttribute("aria-current", "true");
  items[at].scrollIntoView({ block: "nearest" });
  setView(state.view);
  jump(chosen);
  $("text").focus({ preventScroll: true });
}
function setView(view) {
  state.view = view;
  [...$("views").children].forEach((one, k) => one.setAttribute("aria-pressed", k === view));
  const ticks = view === 2 ? [-1, 0, 1] : [0, 0.25, 1];  // as the square root spaces them
  $("what").textContent = { entropy: "entropy", surprisal: "surprisal (−log p; no entropies)",
    "": "no log-probs and no entropies: no colours" }[it.measure];
  $("ramp").hidden = $("ticks").hidden = $("nats").hidden = !it.measure;
  $("ramp").style.background = `linear-gradient(to right, ${palette()[view === 2 ? 1 : 0]})`;
  $("ticks").replaceChildren(...ticks.map((x) =>
    make("span", "", minus(Number((x * cap(view)).toPrecision(2))))));
  drawText(); drawPanel();
}
let saving = 0, typing = 0;
function remember() {  // the address says what is seen; browsers limit how often
  clearTimeout(saving);
  if (location.protocol !== "about:") saving = setTimeout(() => {
    const p = new URLSearchParams(it ? { id: it.row.id, turn: state.turn + 1 } : {});
    if (state.token >= 0) p.set("token", state.token);
    for (const name in state.filters) for (const one of state.filters[name]) p.append(name, one);
    if (state.query) p.set("q", state.query);
    if (state.view) p.set("view", VIEWS[state.view]);
    history.replaceState(null, "", `#${p}`);
  }, 200);
}
// `remember` may have replaced the page's address before the event arrives; the event's is right.
function recall(event) {
  const p = new URLSearchParams(new URL(event?.newURL ?? location.href).hash.slice(1));
  for (const name of ["outcome", "status"]) state.filters[name] = new Set(p.getAll(name));
  state.query = $("search").value = p.get("q") ?? "";
  state.view = Math.max(0, VIEWS.indexOf(p.get("view")));
  const at = SET.rows.findIndex((row) => row.id === p.get("id"));
  items[state.at]?.removeAttribute("aria-current");
  state.at = -1;
  filter(at, (p.get("turn") ?? 1) - 1, Number(p.get("token") ?? -1));
}

// ---------------------------------------------------------------- mouse and keys

function move(by) {
  const shown = visible(), next = shown[shown.indexOf(state.at) + by];
  if (next !== undefined) open(next);
}
const KEYS = { j: () => move(1), k: () => move(-1), ArrowRight: () => showTurn(state.turn + 1),
  ArrowLeft: () => showTurn(state.turn - 1), n: () => jumpUncertain(1), p: () => jumpUncertain(-1),
  ".": () => jump(state.token + 1), ",": () => jump(state.token - 1),
  c: () => setView((state.view + 1) % VIEWS.length), Escape: () => point("token", -1) };
document.addEventListener("keydown", (event) => {
  const typed = event.target === $("search");
  if (event.ctrlKey || event.metaKey || event.altKey || typed && event.key !== "Escape") return;
  if (typed) $("text").focus();
  else if (event.key === "/") { event.preventDefault(); $("search").focus(); }
  else if (it && KEYS[event.key]) { event.preventDefault(); KEYS[event.key](); }
});
const over = (event) => Number(event.target.dataset.i ?? -1);
Object.assign($("text"), { onmousemove: (event) => it && point("near", over(event)),
  onclick: (event) => over(event) >= 0 && point("token", over(event)),
  onmouseleave: () => it && point("near", -1), onscroll: () => it && turnChanged() });
Object.assign($("strip"), { onmousemove: (event) => point("near", under(event)),
  onclick: (event) => jump(under(event)), onmouseleave: () => point("near", -1) });
$("back").onclick = KEYS.ArrowLeft; $("next").onclick = KEYS.ArrowRight;
$("search").oninput = () => {
  clearTimeout(typing);
  typing = setTimeout(() => { state.query = $("search").value; filter(); }, 150);
};
const button = (name, more) => Object.assign(make("button", "", ...name), more);
for (const name in SET.filters) $(name).append(...SET.filters[name].map(([value, n]) => button(
  [`${value} `, make("span", "soft", n)], { value, onclick: () => {
    if (!state.filters[name].delete(value)) state.filters[name].add(value);
    filter();
  } })));
$("views").append(...VIEWS.map((name, k) => button([name], { onclick: () => setView(k) })));
$("views").hidden = $("viewkey").hidden = VIEWS.length === 1;
$("list").append(...items);
document.querySelector("h1").textContent = document.title;
new ResizeObserver(() => it && drawStrip()).observe($("head"));
dark.onchange = () => it && setView(state.view);
addEventListener("hashchange", recall);
addEventListener("message", ({ source, data }) => {  // a page around it opens a trajectory
  const at = SET.rows.findIndex((row) => row.id === data);
  if (source === parent && at >= 0) open(at);
});
recall();
requestAnimationFrame(() => setTimeout(() => performance.mark("drawn")));
