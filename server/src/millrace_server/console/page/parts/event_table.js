// Events in a table; each opens to its headers and its body as text, JSON or hex.
import { get, channelPath } from "../api.js";
import { bytesOf, hexDump, indentedJson, previewOf, textOf } from "../body.js";
import { bytes, time } from "../format.js";
import { Component, html } from "../html.js";

const WHOLE_BODY_BYTES = 1024 * 1024;

// Columns between the sequence and the body are {title, cell(event), look}; `lead` is one before all others.
export const EventTable = (props) =>
    html`<div class="scroll events" tabindex="0" role="region" aria-label=${props.label}>
        <table>
            <caption class="unseen">
                ${props.label}
            </caption>
            <thead>
                <tr>
                    ${props.lead && html`<td><span class="unseen">Chosen</span></td>`}
                    <th scope="col">Sequence</th>
                    ${props.columns.map(
                        ({ title, look }) => html`<th key=${title} scope="col" class=${look}>${title}</th>`,
                    )}
                    <th scope="col">Body</th>
                    <th scope="col" class="number wide">Size</th>
                </tr>
            </thead>
            <tbody>
                ${props.events.map((event) => html`<${EventRow} key=${event.sequence} ...${props} event=${event} />`)}
            </tbody>
        </table>
    </div>`;

class EventRow extends Component {
    state = { isOpen: false };

    // Events do not change, but a choice in the lead does.
    shouldComponentUpdate({ lead, search }, { isOpen }) {
        return Boolean(lead) || search !== this.props.search || isOpen !== this.state.isOpen;
    }

    toggle = () => this.setState(({ isOpen }) => ({ isOpen: !isOpen }));

    render({ channel, event, search, lead, columns }, { isOpen }) {
        const columnCount = 3 + columns.length + (lead ? 1 : 0);
        return html` <tr>
                ${lead && html`<td>${lead(event)}</td>`}
                <th scope="row">
                    <button class="link" type="button" aria-expanded=${isOpen} onClick=${this.toggle}>
                        ${isOpen ? "▾" : "▸"} ${event.sequence}
                    </button>
                </th>
                ${columns.map(({ title, cell, look }) => html`<td key=${title} class=${look}>${cell(event)}</td>`)}
                <td class="preview mono">
                    <${Found} text=${previewOf(bytesOf(event.body_base64), event.is_cut, search)} search=${search} />
                </td>
                <td class="number wide">${bytes(event.body_bytes)}</td>
            </tr>
            ${
                isOpen &&
                html`<tr>
                    <td colspan=${columnCount}>
                        <${EventDetail} channel=${channel} event=${event} search=${search} />
                    </td>
                </tr>`
            }`;
    }
}

class EventDetail extends Component {
    state = { form: null, whole: null, error: null };

    loadWhole = async () => {
        const { channel, event } = this.props;
        const query = `?from_sequence=${event.sequence}&max_events=1&body_bytes_max=${WHOLE_BODY_BYTES}`;
        try {
            const { events } = await get(channelPath(channel, `/events${query}`));
            const whole = events.find(({ sequence }) => sequence === event.sequence);
            this.setState(whole ? { whole, error: null } : { error: "The event is no longer in the channel." });
        } catch (error) {
            this.setState({ error: error.message });
        }
    };

    render({ event, search }, { form, whole, error }) {
        const { body_base64, body_bytes, is_cut } = whole ?? event;
        const body = bytesOf(body_base64);
        const forms = formsOf(body, is_cut);
        const shown = forms[form] === undefined ? Object.keys(forms)[0] : form;
        return html`<div class="event-detail">
            <p class="small muted">${time(event.commit_time, { milliseconds: true })} · ${bytes(body_bytes)}</p>
            ${
                event.headers.length > 0
                    ? html`<dl class="pairs">
                          ${event.headers.map(
                              ([key, value]) =>
                                  html`<dt key=${key} class="mono"><${Found} text=${key} search=${search} /></dt>
                                      <dd class="mono"><${Found} text=${value} search=${search} /></dd>`,
                          )}
                      </dl>`
                    : html`<p class="muted">No headers.</p>`
            }
            <div class="row">
                <div class="tabs" role="group" aria-label="Show the body as">
                    ${Object.keys(forms).map(
                        (name) =>
                            html`<button
                                key=${name}
                                type="button"
                                aria-pressed=${name === shown}
                                onClick=${() => this.setState({ form: name })}
                            >
                                ${name}
                            </button>`,
                    )}
                </div>
                ${is_cut && html`<span class="muted">the first ${bytes(body.length)} of ${bytes(body_bytes)}</span>`}
                ${is_cut && !whole && html`<button type="button" onClick=${this.loadWhole}>Show more</button>`}
                ${error && html`<span class="bad" role="alert">${error}</span>`}
            </div>
            <pre tabindex="0" aria-label="Body" class=${shown === "Hex" ? "hex" : null}>
${shown === "Hex" ? forms.Hex : html`<${Found} text=${forms[shown]} search=${search} />`}</pre>
        </div>`;
    }
}

// The forms that a body has, the most telling one first.
function formsOf(body, isCut) {
    const text = textOf(body, isCut);
    const json = text === null ? null : indentedJson(text);
    return { ...(json && { JSON: json }), ...(text !== null && { Text: text }), Hex: hexDump(body) };
}

// Text in which what was searched for is marked.
function Found({ text, search }) {
    if (!search) return text;
    const [lower, wanted] = [text.toLowerCase(), search.toLowerCase()];
    const pieces = [];
    let end = 0;
    for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, end)) {
        pieces.push(text.slice(end, at), html`<mark>${text.slice(at, at + wanted.length)}</mark>`);
        end = at + wanted.length;
    }
    return html`${pieces}${text.slice(end)}`;
}
