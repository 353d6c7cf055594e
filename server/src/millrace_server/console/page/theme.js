// Dark and light: the system's preference unless the reader chose one, which this browser remembers.
import { Component, html } from "./html.js";

const KEY = "millrace-theme";
const CHOICES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const listeners = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");

function chosen() {
    try {
        const stored = localStorage.getItem(KEY);
        return stored in CHOICES ? stored : "auto";
    } catch {
        return "auto"; // Storage is switched off in this browser.
    }
}

function apply(theme) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    for (const listener of listeners) listener();
}

function choose(theme) {
    try {
        localStorage.setItem(KEY, theme);
    } catch {
        // It holds until the page is closed.
    }
    apply(theme);
}

// Calls back at each change of colours; returns what ends that. What CSS colours needs no call.
export function onThemeChange(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
}

export const initTheme = () => {
    apply(chosen());
    system.addEventListener("change", () => apply(chosen()));
};

export class ThemeSwitch extends Component {
    render() {
        return html`<select aria-label="Theme" value=${chosen()} onChange=${(event) => choose(event.target.value)}>
            ${Object.entries(CHOICES).map(([value, label]) => html`<option value=${value}>${label}</option>`)}
        </select>`;
    }
}
