// A table that is changed and not made anew, so that focus and selection stay where they are.

// columns: [{head, cell: (row) => text or Node, number?, key?}]. A node is kept as long as `reuse` says so.
export function fill(table, columns, rows, keyOf, empty) {
  if (!table.tHead) {
    const head = table.createTHead().insertRow();
    for (const column of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = column.head;
      if (column.number) cell.className = "number";
      head.append(cell);
    }
    table.createTBody();
  }
  const body = table.tBodies[0];
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  const there = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const keys = new Set(rows.map(keyOf));
  for (const line of [...body.rows]) if (!keys.has(line.dataset.key)) line.remove();
  let before = null;
  for (const row of rows) {
    const key = keyOf(row);
    let line = there.get(key);
    if (!line) {
      line = document.createElement("tr");
      line.dataset.key = key;
      for (const column of columns) {
        const cell = line.insertCell();
        if (column.number) cell.className = "number";
      }
    }
    const next = before ? before.nextSibling : body.firstChild;
    if (line !== next) body.insertBefore(line, next);
    before = line;
    columns.forEach((column, i) => write(line.cells[i], column.cell(row, line.cells[i])));
  }
  if (focused && body.contains(focused)) focused.focus({ preventScroll: true }); // a row that moved lost it
  if (!rows.length) {
    const line = body.insertRow();
    line.dataset.key = "";
    const cell = line.insertCell();
    cell.colSpan = columns.length;
    cell.className = "empty";
    cell.textContent = empty;
  }
}

function write(cell, what) {
  if (what instanceof Node) {
    if (cell.firstChild !== what) cell.replaceChildren(what);
  } else if (cell.textContent !== what) cell.textContent = what;
}

// The element that `cell` has already, or a new one: for buttons and bars.
export function kept(cell, tag, make) {
  const found = cell.firstElementChild;
  if (found && found.localName === tag) return found;
  const made = document.createElement(tag);
  make?.(made);
  return made;
}
