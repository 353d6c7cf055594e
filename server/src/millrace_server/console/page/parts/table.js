// Tables: a card with a head, columns, and rows that scroll sideways where the screen is narrow.
import { classes, html } from "../html.js";

// A column is {key, title, cell(row), isNumber, isWide, isName, sort}: `sort` names the server's order by that column.
export function Table({ label, columns, rows, keyOf, order, onOrder, empty = "None." }) {
    if (rows.length === 0) return html`<p class="empty">${empty}</p>`;
    return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
        <table>
            <caption class="unseen">
                ${label}
            </caption>
            <thead>
                <tr>
                    ${columns.map(
                        (column) =>
                            html`<${Heading} key=${column.title} column=${column} order=${order} onOrder=${onOrder} />`,
                    )}
                </tr>
            </thead>
            <tbody>
                ${rows.map(
                    (row) =>
                        html`<tr key=${keyOf(row)}>
                            ${columns.map((column) => cellOf(column, row))}
                        </tr>`,
                )}
            </tbody>
        </table>
    </div>`;
}

const classOf = ({ isNumber, isWide, isName, isReason }) =>
    classes(isNumber && "number", isWide && "wide", isName && "name", isReason && "reason");

function cellOf(column, row) {
    const content = column.cell(row);
    if (column.isName) return html`<th scope="row" class=${classOf(column)}>${content}</th>`;
    return html`<td class=${classOf(column)}>${content}</td>`;
}

function Heading({ column, order, onOrder }) {
    const { title, sort } = column;
    if (!sort) return html`<th scope="col" class=${classOf(column)}>${title}</th>`;
    const isSorted = order.sort === sort;
    const direction = order.isDescending ? "descending" : "ascending";
    const turned = { sort, isDescending: isSorted ? !order.isDescending : Boolean(column.isNumber) };
    return html`<th scope="col" class=${classOf(column)} aria-sort=${isSorted ? direction : null}>
        <button class="link" type="button" onClick=${() => onOrder(turned)}>${title}</button>
    </th>`;
}

export const Card = ({ title, acts, children, isHidden }) =>
    html`<section class="card" hidden=${isHidden}>
        ${
            title &&
            html`<header>
                <h2>${title}</h2>
                ${acts}
            </header>`
        }${children}
    </section>`;

export const Figures = ({ entries }) =>
    html`<dl class="card figures">
        ${entries.map(
            ([name, value, note]) =>
                html`<div key=${name}>
                    <dt>${name}</dt>
                    <dd>${value}${note && html`<small>${note}</small>`}</dd>
                </div>`,
        )}
    </dl>`;

// Pages of a long list.
export function Pager({ offset, limit, total, onMove }) {
    if (total <= limit) return null;
    const last = Math.min(offset + limit, total);
    return html`<nav class="row" aria-label="Pages">
        <span class="muted">${offset + 1} to ${last} of ${total}</span>
        <button type="button" disabled=${offset === 0} onClick=${() => onMove(Math.max(0, offset - limit))}>
            Previous
        </button>
        <button type="button" disabled=${last === total} onClick=${() => onMove(offset + limit)}>Next</button>
    </nav>`;
}
