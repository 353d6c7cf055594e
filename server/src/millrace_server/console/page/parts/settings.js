// Settings with their defaults, what differs from its default first to be seen.
import { html } from "../html.js";
import { Card, Table } from "./table.js";

const shown = (value) => {
    if (value === null || value === "") return "none";
    return typeof value === "object" ? JSON.stringify(value) : String(value);
};

const COLUMNS = [
    { title: "Setting", isName: true, cell: ({ name }) => html`<span class="mono">${name}</span>` },
    {
        title: "Value",
        isReason: true,
        cell: ({ value, is_default }) =>
            html`<span class="mono">${shown(value)}</span>${!is_default && html` <span class="tag">set</span>`}`,
    },
    {
        title: "Default",
        isReason: true,
        isWide: true,
        cell: (setting) => html`<span class="mono muted">${shown(setting.default)}</span>`,
    },
];

export const Settings = ({ title, settings, note }) =>
    html`<${Card} title=${title} acts=${note && html`<span class="muted small">${note}</span>`}>
        <${Table} label=${title} columns=${COLUMNS} rows=${settings} keyOf=${({ name }) => name} />
    <//>`;
