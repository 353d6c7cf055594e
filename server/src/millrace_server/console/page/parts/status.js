// States and severities, told by shape and words as well as by colour.
import { classes, html } from "../html.js";

const SHAPES = {
    good: "M6 2a4 4 0 1 0 0 8a4 4 0 0 0 0-8Z",
    idle: "M6 1.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 0 0 0-9ZM6 3a3 3 0 1 1 0 6a3 3 0 0 1 0-6Z",
    warn: "M6 1 11.5 11H.5Z",
    bad: "M6 .5 11.5 6 6 11.5.5 6Z",
};

const LOOK_OF_STATE = {
    open: "good",
    running: "good",
    starting: "idle",
    stopped: "idle",
    standing_by: "idle",
    replaying: "warn",
    stalled: "warn",
    backing_off: "warn",
    disk_full: "bad",
    log_failed: "bad",
    corrupt: "bad",
    failed: "bad",
};

const LOOK_OF_SEVERITY = { error: "bad", warning: "warn" };

export const lookOf = (severity) => LOOK_OF_SEVERITY[severity] ?? "";

export const words = (name) => name.replaceAll("_", " ");

const Shaped = ({ look, children }) =>
    html`<span class=${classes("status", look)}>
        <svg viewBox="0 0 12 12" aria-hidden="true">
            <path fill="currentColor" fill-rule="evenodd" d=${SHAPES[look]} /></svg
        >${children}
    </span>`;

// The state of a channel or component, such as "open" or "backing off"; a warning about an open channel shows, too.
export const State = ({ state, severity }) => {
    const look = severity ? lookOf(severity) : (LOOK_OF_STATE[state] ?? "idle");
    return html`<${Shaped} look=${look}>${words(state)}<//>`;
};

// Why the server refused, or did not respond.
export const Refusal = ({ error, note }) =>
    error &&
    html`<p class="banner bad" role="alert">
        ${error.reason && html`<code>${error.reason}</code>`}<span>${error.message} ${note}</span>
    </p>`;

export const Severity = ({ severity }) => html`<${Shaped} look=${lookOf(severity)}>${severity}<//>`;
