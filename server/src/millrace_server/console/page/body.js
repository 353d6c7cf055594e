// Bodies of events: text, JSON or bytes, shown without changing a character.

const HEX_COLUMNS = 16;
const PREVIEW_CHARACTERS = 300;
const BEFORE_CHARACTERS = 30;
// Control characters other than tab, newline and carriage return say that bytes are no text.
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f]/;

export const bytesOf = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

// The text, or null if the bytes are none. A body that is cut may end inside a character.
export function textOf(bytes, isCut) {
    try {
        const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: isCut });
        return CONTROL.test(text) ? null : text;
    } catch {
        return null;
    }
}

// A line of the body: its beginning, or what is around what was searched for.
export function previewOf(bytes, isCut, search) {
    const text = textOf(bytes, isCut);
    if (text === null) return Array.from(bytes.subarray(0, 2 * HEX_COLUMNS), hexOf).join(" ");
    const start = search ? text.toLowerCase().indexOf(search.toLowerCase()) - BEFORE_CHARACTERS : 0;
    return start > 0 ? `…${text.slice(start, start + PREVIEW_CHARACTERS)}` : text.slice(0, PREVIEW_CHARACTERS);
}

const hexOf = (byte) => byte.toString(16).padStart(2, "0");

export function hexDump(bytes) {
    const lines = [];
    for (let start = 0; start < bytes.length; start += HEX_COLUMNS) {
        const row = Array.from(bytes.subarray(start, start + HEX_COLUMNS));
        const shown = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
        lines.push(
            `${start.toString(16).padStart(8, "0")}  ${row
                .map(hexOf)
                .join(" ")
                .padEnd(3 * HEX_COLUMNS)} ${shown}`,
        );
    }
    return lines.join("\n");
}

// JSON with line breaks and indentation, or null if the text is none. Parsing and writing it again would round long numbers.
export function indentedJson(text) {
    try {
        const value = JSON.parse(text);
        if (value === null || typeof value !== "object") return null;
    } catch {
        return null;
    }
    const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
    let [depth, shown] = [0, ""];
    const newLine = () => `\n${"  ".repeat(depth)}`;
    tokens.forEach((token, index) => {
        const isEmpty = "{[".includes(tokens[index - 1]);
        if ("{[".includes(token)) {
            depth += 1;
            shown += token + ("}]".includes(tokens[index + 1]) ? "" : newLine());
        } else if ("}]".includes(token)) {
            depth -= 1;
            shown += (isEmpty ? "" : newLine()) + token;
        } else if (token === ",") shown += token + newLine();
        else shown += token === ":" ? ": " : token;
    });
    return shown;
}
