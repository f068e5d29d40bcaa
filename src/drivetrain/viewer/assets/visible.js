// Text that cannot be seen, or that moves what is seen around it, is spelled out.

import { el } from "./dom.js";

const HIDDEN =
  /[\u0000-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\uffff\u{e0000}-\u{e0fff}]/gu;

function spelled(char) {
  const code = char.codePointAt(0);
  if (char === "\n") return "\u21b5";
  if (char === "\t") return "\u2192";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
}

// Pieces of a text in order: { text, hidden }.
export function pieces(text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > end) found.push({ text: text.slice(end, match.index), hidden: false });
    found.push({ text: spelled(match[0]), hidden: true });
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push({ text: text.slice(end), hidden: false });
  return found;
}

export function visibleText(text) {
  return text.replace(HIDDEN, spelled);
}

// Nodes for a text; what was hidden is marked.
export function visibleNodes(text) {
  return pieces(text).map((piece) =>
    piece.hidden ? el("span", { class: "hidden-char" }, piece.text) : document.createTextNode(piece.text));
}

// As visibleNodes, but line breaks stay line breaks.
export function visibleParagraphs(text) {
  return (text ?? "").split("\n").flatMap((line, index) => [...(index ? [document.createTextNode("\n")] : []), ...visibleNodes(line)]);
}

const NARROW = /^[\x20-\x7e]*$/;
const WIDE =
  /[\u1100-\u115f\u2e80-\u303e\u3041-\u33ff\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation}/u;

// Columns that a text takes in a font of one width.
export function columns(text) {
  if (NARROW.test(text)) return text.length;
  let count = 0;
  for (const char of visibleText(text)) count += /\p{M}/u.test(char) ? 0 : WIDE.test(char) ? 2 : 1;
  return count;
}
