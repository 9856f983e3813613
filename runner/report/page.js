// Sort a table by the column whose title is pressed; unknown values stay last. Without this the table is as written.
"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const written = [...body.rows];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => sort(head, column));
  });
  const value = (row, column) => row.cells[column].dataset.value;
  function sort(head, column) {
    const down = head.getAttribute("aria-sort") === "ascending";
    const numeric = head.classList.contains("number");
    const compare = (a, b) =>
      numeric ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
    const unknown = (text) => text === "" || (numeric && Number.isNaN(Number(text)));
    const rows = [...written].sort((a, b) => {
      const [x, y] = [value(a, column), value(b, column)];
      if (unknown(x) || unknown(y)) return unknown(x) - unknown(y);
      return down ? compare(y, x) : compare(x, y);
    });
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.replaceChildren(...rows);
  }
}
