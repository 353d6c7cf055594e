// Figures as people read them. What is not known is an en dash.

const NONE = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const DURATION_UNITS = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
];

const isKnown = (value) => value !== null && value !== undefined;

export const count = (value) => (isKnown(value) ? whole.format(value) : NONE);

export const compact = (value) => (isKnown(value) ? short.format(value) : NONE);

export const percent = (fraction) => {
    if (!isKnown(fraction)) return NONE;
    if (fraction === 0) return "0%";
    if (fraction < 0.001) return "< 0.1%";
    return `${(100 * fraction).toFixed(fraction < 0.1 ? 1 : 0)}%`;
};

// Events a second.
export function rate(value) {
    if (!isKnown(value)) return NONE;
    if (value === 0) return "0/s";
    if (value < 0.1) return "< 0.1/s";
    return `${value < 10 ? value.toFixed(1) : compact(value)}/s`;
}

export function bytes(value) {
    if (!isKnown(value)) return NONE;
    const power = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), BYTE_UNITS.length - 1);
    const scaled = value / 1024 ** power;
    return `${power > 0 && scaled < 10 ? scaled.toFixed(1) : Math.round(scaled)} ${BYTE_UNITS[power]}`;
}

// Two units at most: "2 d 3 h", "4 min 10 s", "12 s", "0.4 s".
export function duration(seconds) {
    if (!isKnown(seconds)) return NONE;
    if (seconds < 10) return `${Number(Math.max(seconds, 0).toFixed(1))} s`;
    let rest = Math.round(seconds);
    if (rest > 365 * 86400) return "over a year";
    const parts = [];
    for (const [size, unit] of DURATION_UNITS) {
        if (rest >= size) parts.push(`${Math.floor(rest / size)} ${unit}`);
        rest %= size;
    }
    if (rest > 0) parts.push(`${rest} s`);
    return parts.slice(0, 2).join(" ");
}

export function ago(seconds) {
    if (!isKnown(seconds)) return NONE;
    return seconds < 1 ? "just now" : `${duration(seconds)} ago`;
}

const two = (number) => String(number).padStart(2, "0");

// Seconds since 1970 in the reader's zone, down to the millisecond where asked for.
export function time(seconds, { milliseconds = false } = {}) {
    if (!isKnown(seconds)) return NONE;
    const at = new Date(1000 * seconds);
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
    return `${day} ${clock}${milliseconds ? `.${String(at.getMilliseconds()).padStart(3, "0")}` : ""}`;
}

export const clock = (seconds) => (isKnown(seconds) ? time(seconds).slice(11) : NONE);
