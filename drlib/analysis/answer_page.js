// Filters of the questions; a button opens its trajectory in the viewer below. See answer_page.py.
"use strict";
const $ = (id) => document.getElementById(id);
const rows = [...document.querySelectorAll("#questions tbody tr")];
const texts = rows.map((row) => row.textContent.toLowerCase());
function filter() {
  const query = $("search").value.toLowerCase(), { value: verdict } = $("verdict");
  const category = $("category").value;
  rows.forEach((row, k) => {
    const verdicts = row.dataset.verdicts.split(" ");
    const fits = verdict === "differ" ? new Set(verdicts).size > 1 : verdicts.includes(verdict);
    row.hidden = !texts[k].includes(query) || verdict && !fits
      || category && row.dataset.category !== category;
  });
  const shown = rows.filter((row) => !row.hidden).length;
  $("count").textContent = `${shown} of ${rows.length} questions`;
}
for (const name of ["search", "verdict", "category"]) $(name).oninput = filter;
$("category").hidden = $("category").options.length < 3;
$("questions").onclick = ({ target }) => {
  if (!target.dataset.trajectory) return;
  $("viewer").contentWindow.postMessage(target.dataset.trajectory, "*");
  $("viewer").scrollIntoView();
};
filter();
