// Teaching panels that run in the page: no kernel, no library, no network. Each panel is an entry
// of PANELS: `controls` and `draw(values)`, which returns SVG parts and named numbers. `mount`
// builds the page. tests/test_notebook_panels.py compares the numbers with the library.

(() => {
  const BLUE = "#3b82c4", ORANGE = "#d9822b", GREEN = "#3f9a6b", GREY = "#8c8c8c";
  const WIDTH = 640, HEIGHT = 250, LEFT = 46, BOTTOM = 34, TOP = 10, RIGHT = 8;

  const slider = (name, label, min, max, step, value) =>
    ({ name, label, min, max, step, value });
  const menu = (name, label, options) => ({ name, label, options, value: options[0] });

  // ------------------------------------------------------------------------------------------
  // drawing

  const text = (x, y, words, more = "") =>
    `<text x="${x}" y="${y}" fill="currentColor" font-size="12" ${more}>${words}</text>`;

  // Linear axes from [x0, x1] x [y0, y1] to the picture.
  function axes([x0, x1], [y0, y1], xlabel, ylabel, xticks, yticks) {
    const x = (value) => LEFT + ((value - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - ((value - y0) / (y1 - y0)) * (HEIGHT - BOTTOM - TOP);
    const parts = [];
    for (const [at, words] of xticks) {
      parts.push(text(x(at), HEIGHT - BOTTOM + 14, words ?? at, 'text-anchor="middle"'));
    }
    for (const at of yticks) {
      parts.push(text(LEFT - 5, y(at) + 4, at, 'text-anchor="end"'));
      parts.push(`<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${y(at)}" y2="${y(at)}"
        stroke="currentColor" stroke-opacity="${at === 0 ? 0.6 : 0.15}"/>`);
    }
    parts.push(text((LEFT + WIDTH) / 2, HEIGHT - 4, xlabel, 'text-anchor="middle"'));
    const turned = `text-anchor="middle" transform="rotate(-90 12 ${HEIGHT / 2 - 12})"`;
    parts.push(text(12, HEIGHT / 2 - 12, ylabel, turned));
    return { x, y, parts };
  }

  function curve(frame, points, colour, more = "") {
    const path = points.map(([a, b]) => `${frame.x(a).toFixed(1)},${frame.y(b).toFixed(1)}`);
    return `<polyline points="${path.join(" ")}" fill="none" stroke="${colour}"
      stroke-width="2" ${more}/>`;
  }

  const dot = (frame, a, b, colour) =>
    `<circle cx="${frame.x(a)}" cy="${frame.y(b)}" r="5" fill="${colour}"/>`;

  function bar(frame, a, b, half, colour) {
    const [high, low] = [frame.y(Math.max(b, 0)), frame.y(Math.min(b, 0))];
    return `<rect x="${frame.x(a - half)}" y="${high}" width="${frame.x(a + half) - frame.x(a - half)}"
      height="${Math.max(low - high, 1)}" fill="${colour}"/>`;
  }

  const range = (start, end, count) =>
    Array.from({ length: count + 1 }, (_, i) => start + ((end - start) * i) / count);

  // ------------------------------------------------------------------------------------------
  // clip: factor of grad log pi in one token's gradient

  const CLIPS = {
    ppo: (r, a, low, high) => ((a > 0 ? r > 1 + high : r < 1 - low) ? 0 : r * a),
    double_sided: (r, a, low, high) => (r > 1 - low && r < 1 + high ? r * a : 0),
    cispo: (r, a, low, high) => Math.min(r, 1 + high) * a,
    none: (r, a) => r * a,
  };

  const clip = {
    about: "The factor of grad log π in a token's gradient, against the ratio r = π / μ.",
    controls: [
      menu("clip", "clip", Object.keys(CLIPS)),
      menu("advantage", "advantage A", ["1", "-1"]),
      slider("ratio", "ratio r", 0, 2.5, 0.05, 1.4),
      slider("low", "ε low", 0, 0.9, 0.05, 0.2),
      slider("high", "ε high", 0, 1, 0.05, 0.3),
    ],
    draw(v) {
      const a = Number(v.advantage);
      const ticks = [0, 0.5, 1, 1.5, 2, 2.5].map((at) => [at]);
      const frame = axes([0, 2.5], [-2.5, 2.5], "ratio r", "factor", ticks, [-2, -1, 0, 1, 2]);
      const of = (name, r) => CLIPS[name](r, a, v.low, v.high);
      const line = (name) => range(0, 2.5, 500).map((r) => [r, of(name, r)]);
      const parts = [...frame.parts, curve(frame, line("none"), GREY, 'stroke-dasharray="4 4"')];
      parts.push(curve(frame, line(v.clip), a > 0 ? BLUE : ORANGE));
      parts.push(dot(frame, v.ratio, of(v.clip, v.ratio), a > 0 ? BLUE : ORANGE));
      return {
        parts,
        numbers: { factor: of(v.clip, v.ratio), "without a clip": of("none", v.ratio) },
        note: "Dashed: no clip. Zero means that this token changes nothing.",
      };
    },
  };

  // ------------------------------------------------------------------------------------------
  // advantage: eight rewards of one group

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  const ADVANTAGES = {
    leave_one_out: (R) => R.map((r) => r - (mean(R) * R.length - r) / (R.length - 1)),
    group_mean: (R) => R.map((r) => r - mean(R)),
    group_normalized(R) {
      const centred = R.map((r) => r - mean(R));
      const std = Math.sqrt(centred.reduce((sum, c) => sum + c * c, 0) / (R.length - 1));
      return centred.map((c) => (std === 0 ? 0 : c / (std + 1e-6)));
    },
  };

  const advantage = {
    about: "The advantages of eight rollouts of one question.",
    controls: [
      menu("estimator", "estimator", Object.keys(ADVANTAGES)),
      slider("correct", "correct rollouts", 0, 8, 1, 3),
      slider("partial", "reward of a partial answer", 0, 1, 0.1, 0),
      slider("partials", "partial answers", 0, 8, 1, 0),
    ],
    draw(v) {
      const R = range(1, 8, 7).map((n) =>
        n <= v.correct ? 1 : n <= v.correct + v.partials ? v.partial : 0);
      const A = ADVANTAGES[v.estimator](R);
      const ticks = R.map((r, i) => [i + 1, `R = ${r}`]);
      const frame = axes([0.4, 8.6], [-2.6, 2.6], "rollouts", "advantage", ticks, [-2, -1, 0, 1, 2]);
      const bars = A.map((a, i) => bar(frame, i + 1, a, 0.3, a > 0 ? BLUE : ORANGE));
      return {
        parts: [...frame.parts, ...bars],
        numbers: { "first rollout": A[0], "last rollout": A[7], sum: A.reduce((s, a) => s + a, 0) },
        note: A.every((a) => Math.abs(a) < 1e-9)
          ? "All rewards are equal: the group has no gradient."
          : "Blue: more likely after the update. Orange: less likely.",
      };
    },
  };

  // ------------------------------------------------------------------------------------------
  // KL: estimators on the three tokens of a policy

  const softmax = (logits) => {
    const top = Math.max(...logits);
    const exps = logits.map((logit) => Math.exp(logit - top));
    return exps.map((e) => e / exps.reduce((sum, other) => sum + other, 0));
  };

  const kl = {
    about: "Three tokens. The reference has the probabilities 0.5, 0.3 and 0.2.",
    controls: [
      menu("estimator", "estimator", ["k1", "k2", "k3"]),
      slider("first", "logit of token 1", -3, 3, 0.1, 1),
      slider("second", "logit of token 2", -3, 3, 0.1, 0),
      slider("third", "logit of token 3", -3, 3, 0.1, -1),
    ],
    draw(v) {
      const reference = [0.5, 0.3, 0.2];
      const pi = softmax([v.first, v.second, v.third]);
      const d = pi.map((p, i) => Math.log(p / reference[i]));
      const estimators = {
        k1: d, k2: d.map((x) => (x * x) / 2), k3: d.map((x) => Math.exp(-x) - 1 + x),
      };
      const under = (weights, values) => weights.reduce((sum, w, i) => sum + w * values[i], 0);
      const ticks = [[1, "token 1"], [2, "token 2"], [3, "token 3"]];
      const frame = axes([0.5, 3.5], [-1.5, 2.1], "", "probability, estimate", ticks,
        [-1, 0, 1, 2]);
      const clipped = estimators[v.estimator].map((value) => Math.min(Math.max(value, -1.5), 2.1));
      const bars = ticks.flatMap(([at], i) => [
        bar(frame, at - 0.22, reference[i], 0.09, GREY),
        bar(frame, at, pi[i], 0.09, BLUE),
        bar(frame, at + 0.22, clipped[i], 0.09, GREEN),
      ]);
      return {
        parts: [...frame.parts, ...bars],
        numbers: {
          "KL(π || reference)": under(pi, d),
          "KL(reference || π)": -under(reference, d),
          "mean of the estimator": under(pi, estimators[v.estimator]),
        },
        note: "Grey: reference. Blue: policy π. Green: estimate on this token.",
      };
    },
  };

  // ------------------------------------------------------------------------------------------
  // staleness: log r is normal with mean -s²/2 and deviation s, s² = age σ²

  function normal_cdf(x) {
    // Abramowitz and Stegun 7.1.26, error below 1.5e-7
    const z = Math.abs(x) / Math.SQRT2, t = 1 / (1 + 0.3275911 * z);
    const poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t
      + 0.254829592) * t;
    const erf = 1 - poly * Math.exp(-z * z);
    return x < 0 ? (1 - erf) / 2 : (1 + erf) / 2;
  }

  const staleness = {
    about: "The ratios of tokens that are some updates old. Every update changes log r by σ.",
    controls: [
      slider("age", "age in updates", 1, 16, 1, 2),
      slider("sigma", "σ per update", 0.01, 0.5, 0.01, 0.15),
      slider("low", "ε low", 0.05, 0.9, 0.05, 0.2),
      slider("high", "ε high", 0.05, 1, 0.05, 0.3),
    ],
    draw(v) {
      const s = v.sigma * Math.sqrt(v.age);
      const below = (r) => normal_cdf((Math.log(r) + (s * s) / 2) / s);
      const masked = below(1 - v.low) + 1 - below(1 + v.high);
      const density = (r) => Math.exp(-(((Math.log(r) + (s * s) / 2) / s) ** 2) / 2) / r;
      const all = range(0.01, 2.5, 400).map((r) => [r, density(r)]);
      const top = Math.max(...all.map(([, at]) => at));
      const scaled = all.map(([r, at]) => [r, at / top]);
      const ticks = [0, 0.5, 1, 1.5, 2, 2.5].map((at) => [at]);
      const frame = axes([0, 2.5], [0, 1.05], "ratio r", "density (scaled)", ticks, [0, 0.5, 1]);
      const edge = (at) => `<line x1="${frame.x(at)}" x2="${frame.x(at)}" y1="${TOP}"
        y2="${HEIGHT - BOTTOM}" stroke="${ORANGE}" stroke-dasharray="4 4"/>`;
      return {
        parts: [...frame.parts, curve(frame, scaled, BLUE), edge(1 - v.low), edge(1 + v.high)],
        numbers: { "effective sample size": Math.exp(-s * s), "outside the range": masked },
        note: "Orange: the range. The effective sample size is exp(-age · σ²).",
      };
    },
  };

  // ------------------------------------------------------------------------------------------
  // entropy: five tokens and a temperature

  const entropy = {
    about: "Five tokens whose logits fall by equal gaps.",
    controls: [
      slider("gap", "gap between logits", 0, 3, 0.1, 1),
      slider("temperature", "temperature", 0.1, 3, 0.1, 1),
    ],
    draw(v) {
      const pi = softmax([4, 3, 2, 1, 0].map((rank) => (rank * v.gap) / v.temperature));
      const H = -pi.reduce((sum, p) => sum + (p > 0 ? p * Math.log(p) : 0), 0);
      const ticks = pi.map((p, i) => [i + 1, `token ${i + 1}`]);
      const frame = axes([0.4, 5.6], [0, 1.05], "", "probability", ticks, [0, 0.5, 1]);
      return {
        parts: [...frame.parts, ...pi.map((p, i) => bar(frame, i + 1, p, 0.3, BLUE))],
        numbers: { "entropy, nats": H, "exp of the entropy": Math.exp(H), "largest probability": pi[0] },
        note: "exp of the entropy: as many equally likely tokens have this entropy (at most 5).",
      };
    },
  };

  // ------------------------------------------------------------------------------------------
  // scheduler: sampling and updates in turns, or side by side

  function in_turns(v, batches) {
    const spans = [], generate = v.sample / v.engines;
    let now = 0;
    for (let batch = 0; batch < batches; batch++) {
      for (let e = 1; e <= v.engines; e++) spans.push([e, now, now + generate]);
      spans.push([0, now + generate, now + generate + v.update]);
      now += generate + v.update;
    }
    return { spans, step: generate + v.update, age: 0 };
  }

  function side_by_side(v, batches) {
    const started = range(1, v.engines, Math.max(v.engines - 1, 1)).slice(0, v.engines)
      .map((e) => (v.sample * (e - v.engines)) / v.engines);
    const ready = started.map((at) => at + v.sample), version = started.map(() => 0);
    const spans = [], ends = [];
    let now = 0, age = 0;
    for (let batch = 0; batch < batches; batch++) {
      const e = ready.indexOf(Math.min(...ready)), taken = Math.max(now, ready[e]);
      spans.push([e + 1, started[e], ready[e]]);
      age = batch - version[e];
      [started[e], ready[e], version[e]] = [taken, taken + v.sample, batch];
      now = taken + v.update;
      spans.push([0, taken, now]);
      ends.push(now);
    }
    const half = batches / 2;
    return { spans, step: (ends[batches - 1] - ends[half - 1]) / half, age };
  }

  const scheduler = {
    about: "Engines sample batches, the learner trains on them.",
    controls: [
      menu("schedule", "schedule", ["in turns", "side by side"]),
      slider("sample", "seconds to sample (engine)", 1, 20, 1, 10),
      slider("update", "seconds of an update", 1, 20, 1, 5),
      slider("engines", "engines", 1, 4, 1, 2),
    ],
    draw(v) {
      const batches = 48;
      const run = v.schedule === "in turns" ? in_turns(v, batches) : side_by_side(v, batches);
      const until = 60, ticks = [0, 10, 20, 30, 40, 50, 60].map((at) => [at]);
      const frame = axes([0, until], [-0.6, 4.6], "seconds", "", ticks, []);
      const rows = run.spans.filter(([, start, end]) => end > 0 && start < until).map(
        ([lane, start, end]) => {
          const [a, b] = [Math.max(start, 0), Math.min(end, until)];
          return `<rect x="${frame.x(a) + 0.5}" y="${frame.y(4 - lane) - 14}"
            width="${Math.max(frame.x(b) - frame.x(a) - 1, 0.5)}" height="28"
            fill="${lane ? GREY : BLUE}"/>`;
        });
      const names = range(0, v.engines, v.engines).map((lane) =>
        text(LEFT - 5, frame.y(4 - lane) + 4, lane ? `eng. ${lane}` : "learner",
          'text-anchor="end" textLength="41"'));
      return {
        parts: [...frame.parts, ...rows, ...names],
        numbers: { "seconds per step": run.step, "age of a batch": run.age },
        note: "Blue: update. Grey: sampling. Gaps are idle time.",
      };
    },
  };

  const PANELS = { clip, advantage, kl, staleness, entropy, scheduler };

  // ------------------------------------------------------------------------------------------
  // the page

  function mount(root) {
    const panel = PANELS[root.dataset.panel];
    root.dataset.live = "yes";
    const values = {}, inputs = {}, id = (name) => `${root.id}-${name}`;
    const head = `<div>${panel.about}</div>`;
    const rows = panel.controls.map((c) => {
      const input = c.options
        ? `<select id="${id(c.name)}">${c.options.map((o) => `<option>${o}</option>`).join("")}</select>`
        : `<input type="range" id="${id(c.name)}" min="${c.min}" max="${c.max}" step="${c.step}">
           <output for="${id(c.name)}"></output>`;
      return `<label for="${id(c.name)}" style="display:inline-block;width:15em;margin:2px 0">${c.label}</label>${input}`;
    });
    root.innerHTML = `${head}<div>${rows.map((row) => `<div>${row}</div>`).join("")}</div>
      <button type="button">reset</button>
      <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" style="display:block;width:100%;max-width:${WIDTH}px"
        role="img" aria-label="${panel.about}"></svg><div data-part="numbers"></div>
      <div data-part="note"></div>`;
    function draw() {
      for (const c of panel.controls) {
        const input = inputs[c.name];
        values[c.name] = c.options ? input.value : Number(input.value);
        if (!c.options) input.nextElementSibling.textContent = input.value;
      }
      const drawn = panel.draw(values);
      root.querySelector("svg").innerHTML = drawn.parts.join("");
      const shown = Object.entries(drawn.numbers).map(([name, value]) =>
        `${name}: <b data-number="${name}" data-exact="${value}">${value.toFixed(3).replace(/^-(0\.0+)$/, "$1")}</b>`);
      root.querySelector("[data-part=numbers]").innerHTML = shown.join(" &nbsp; ");
      root.querySelector("[data-part=note]").textContent = drawn.note;
    }
    function reset() {
      for (const c of panel.controls) inputs[c.name].value = c.value;
      draw();
    }
    for (const c of panel.controls) {
      inputs[c.name] = root.querySelector(`[id="${id(c.name)}"]`);
      inputs[c.name].addEventListener("input", draw);
    }
    root.querySelector("button").addEventListener("click", reset);
    reset();
  }

  document.querySelectorAll(".drlib-panel:not([data-live])").forEach(mount);
})();
