// Shows the rows of both programs: those of a module when it is opened, relations as lines while a row is chosen.
const data = JSON.parse(document.querySelector("#programs-data").textContent);
const list = document.querySelector("#modules");
const field = document.querySelector("#filter");
const onlyFailed = document.querySelector("#only-failed");
const source = document.querySelector("#source");
const found = document.querySelector("#found");
const MOST_OPENED = 1000; // rows that a search shows; parts with more are told and can be opened one by one
const MOST_LINES = 50; // relations that are drawn for a row
const rowsOf = new Map(); // "spec " or "implementation " and the name of a node -> its row on the page
const moduleOf = new Map(); // the same -> the part of the page of its module
const known = new Map(); // the same -> what is known of the node
const holders = new Map(); // name of a node of a rank -> the names of the spec's nodes that it is related to

const isFailed = (module) => [...module.spec, ...module.implementation].some((row) => row.failed);
const textOf = (row) =>
  [row.text, row.name, row.operator, row.type, ...(row.related ?? []).map((r) => r[1])].join(" ").toLowerCase();
const fits = (row, wanted) => (row.failed || !onlyFailed.checked) && (row.words ??= textOf(row)).includes(wanted);

function make(tag, text, parent, className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  element.className = className;
  parent.append(element);
  return element;
}

function show(row, side, column) {
  const element = make("div", "", column, "row");
  element.classList.toggle("failed", row.failed);
  element.classList.toggle("related", Boolean(row.related?.length));
  make("code", row.text, element);
  make("small", ` ${[row.operator, row.type].filter(Boolean).join(" ")}`, element);
  for (const [, relation] of row.related ?? []) {
    const line = make("div", "= ", element);
    make("code", relation, line);
  }
  if (row.lemmas.length) {
    const line = make("div", "by ", element);
    for (const code of row.lemmas) make("a", `${code} `, line).href = `#${code}`;
  }
  element.row = row;
  element.addEventListener("click", () => choose(row, side));
  rowsOf.set(`${side} ${row.name}`, element);
}

function fill(part, module) {
  if (part.querySelector(".sides")) return;
  if (!module.spec.length && !module.implementation.length) {
    make("p", `These values are left out: the page holds at most ${data.most}.`, part, "sides");
    return;
  }
  const sides = make("div", "", part, "sides");
  for (const [side, title] of [["spec", "Spec"], ["implementation", "Each rank"]]) {
    const column = make("div", "", sides);
    make("h3", title, column);
    for (const row of module[side]) show(row, side, column);
  }
  sides.append(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
}

function choose(row, side) {
  for (const chosen of document.querySelectorAll(".row.chosen")) chosen.classList.remove("chosen");
  for (const path of document.querySelectorAll(".sides path")) path.remove();
  const [to, names] =
    side === "spec"
      ? ["implementation", row.related.map(([name]) => name)]
      : ["spec", holders.get(row.name) ?? []];
  rowsOf.get(`${side} ${row.name}`).classList.add("chosen");
  for (const name of names.slice(0, MOST_LINES)) connect(...(side === "spec" ? [row.name, name] : [name, row.name]));
  const other = known.get(`${to} ${names[0]}`);
  source.replaceChildren();
  const [spec, implementation] = side === "spec" ? [row, other] : [other, row];
  for (const [title, shown] of [["Spec", spec], ["Each rank", implementation]]) quote(title, shown);
}

function connect(left, right) {
  const keys = [`spec ${left}`, `implementation ${right}`];
  if (!keys.every((key) => known.has(key))) return;
  for (const key of keys) open(moduleOf.get(key));
  const [from, to] = keys.map((key) => rowsOf.get(key));
  to.classList.add("chosen");
  from.classList.add("chosen");
  const svg = from.closest(".sides").querySelector("svg");
  const [box, a, b] = [svg, from, to].map((element) => element.getBoundingClientRect());
  const [x1, y1] = [a.right - box.left, a.top + a.height / 2 - box.top];
  const [x2, y2] = [b.left - box.left, b.top + b.height / 2 - box.top];
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", `M ${x1} ${y1} C ${(x1 + x2) / 2} ${y1}, ${(x1 + x2) / 2} ${y2}, ${x2} ${y2}`);
  svg.append(path);
}

function quote(title, row) {
  const pane = make("div", "", source);
  if (!row?.place) return;
  const [file, line] = row.place;
  make("strong", `${title}: ${data.files[file]}:${line}`, pane);
  const text = make("pre", "", pane);
  const lines = data.source[file];
  for (let number = line - 4; number <= line + 4; number += 1) {
    if (lines[number] === undefined) continue;
    make(number === line ? "mark" : "span", `${String(number).padStart(5)} ${lines[number]}\n`, text);
  }
}

function open(part) {
  part.open = true;
  fill(part, data.modules[part.dataset.number]);
}

function filter() {
  const wanted = field.value.toLowerCase();
  const asks = Boolean(wanted) || onlyFailed.checked;
  let [values, parts, opened] = [0, 0, 0];
  for (const part of list.children) {
    const module = data.modules[part.dataset.number];
    const rows = [...module.spec, ...module.implementation];
    const named = !onlyFailed.checked && module.name.toLowerCase().includes(wanted);
    const count = named ? rows.length : rows.filter((row) => fits(row, wanted)).length;
    part.hidden = !named && count === 0;
    if (!part.hidden) [values, parts] = [values + count, parts + 1];
    if (part.dataset.searched) [part.open, part.dataset.searched] = [false, ""];
    if (asks && !part.hidden && !part.open && opened + rows.length <= MOST_OPENED) {
      [opened, part.dataset.searched] = [opened + rows.length, "yes"];
      open(part);
    }
    for (const element of part.querySelectorAll(".row")) element.hidden = !named && !fits(element.row, wanted);
  }
  found.textContent = asks ? `${values} values in ${parts} parts` : "";
}

data.modules.forEach((module, number) => {
  const part = make("details", "", list);
  part.dataset.number = number;
  const title = make("summary", module.name, part, isFailed(module) ? "refuted" : "");
  const [values, related, onRanks] = module.counts;
  make("small", ` ${values} values, ${related} related; ${onRanks} on each rank`, title);
  for (const side of ["spec", "implementation"]) {
    for (const row of module[side]) {
      moduleOf.set(`${side} ${row.name}`, part);
      known.set(`${side} ${row.name}`, row);
      for (const [name] of row.related ?? []) {
        if (!holders.has(name)) holders.set(name, []);
        holders.get(name).push(row.name);
      }
    }
  }
  part.addEventListener("toggle", () => part.open && fill(part, module));
  if (isFailed(module)) open(part);
});
field.addEventListener("input", filter);
onlyFailed.addEventListener("change", filter);
