// What is wrong, worst first, each with its reason and what can be done.
import { ago } from "../format.js";
import { html } from "../html.js";
import { link } from "../routes.js";
import { Severity, words } from "./status.js";
import { Card } from "./table.js";

const addressOf = ({ kind, name }) => {
    if (kind === "channel") return link.channel(name);
    return kind === "server" ? link.configuration() : link.components();
};

export function Troubles({ troubles, count, now }) {
    if (count === 0)
        return html`<p class="banner" role="status">
            <span class="good" aria-hidden="true">●</span> Nothing is wrong.
        </p>`;
    return html`<${Card} title=${count === 1 ? "One thing is wrong" : `${count} things are wrong`}>
        <ul class="troubles">
            ${troubles.map(
                (trouble) =>
                    html`<li key=${`${trouble.kind}/${trouble.name}/${trouble.reason}`}>
                        <${Severity} severity=${trouble.severity} />
                        <span
                            ><span class="muted">${words(trouble.kind)} </span
                            ><a href=${addressOf(trouble)}>${trouble.name}</a></span
                        >
                        <p>${trouble.reason}${trouble.advice && html` <span class="muted advice">${trouble.advice}</span>`}</p>
                        <span class="muted small wide">${trouble.since_time && ago(now - trouble.since_time)}</span>
                    </li>`,
            )}
        </ul>
        ${count > troubles.length && html`<p class="empty">and ${count - troubles.length} more</p>`}
    <//>`;
}
