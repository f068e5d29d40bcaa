// Text cut into lines: where it has line breaks, and where a line would be wider than the pane.

import { columns } from "./visible.js";

// [start, end) of each line; line breaks belong to no line.
export function wrapped(text, width) {
  const lines = [];
  let start = 0;
  while (start <= text.length) {
    const found = text.indexOf("\n", start);
    const end = found < 0 ? text.length : found;
    wrapLine(text, start, end, width, lines);
    start = end + 1;
  }
  return lines;
}

function wrapLine(text, start, end, width, lines) {
  while (end - start > width / 2 && columns(text.slice(start, end > start + 4 * width ? start + 4 * width : end)) > width) {
    const cut = cutAt(text, start, end, width);
    lines.push([start, cut]);
    start = cut;
  }
  lines.push([start, end]);
}

// The longest beginning that fits; behind a space if there is one in its second half.
function cutAt(text, start, end, width) {
  let used = 0;
  let at = start;
  while (at < end) {
    const char = String.fromCodePoint(text.codePointAt(at));
    used += columns(char);
    if (used > width && at > start) break;
    at += char.length;
  }
  const space = text.lastIndexOf(" ", at - 1);
  return space > start + (at - start) / 2 ? space + 1 : at;
}
