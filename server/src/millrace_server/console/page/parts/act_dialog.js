// The dialog of an act: its fields, the name to be typed, and then the server's response.
import { post } from "../api.js";
import { Component, focus, html } from "../html.js";
import { refreshAll } from "../live.js";
import { Refusal } from "./status.js";

let host = null;

// Opens the dialog of an act, which `acts.js` describes.
export const openAct = (act) => host.open(act);

export class ActHost extends Component {
    state = { act: null };

    componentDidMount() {
        host = this;
        addEventListener("hashchange", () => this.setState({ act: null }));
    }

    open = (act) => this.setState({ act });

    close = (isDone) => {
        const { act } = this.state;
        this.setState({ act: null });
        if (isDone) act.onDone?.();
    };

    render(_props, { act }) {
        return act && html`<${ActDialog} act=${act} onClose=${this.close} />`;
    }
}

class ActDialog extends Component {
    state = { typed: "", values: initialValues(this.props.act), isSending: false, response: null, error: null };

    componentDidMount() {
        this.dialog.showModal();
    }

    get isConfirmed() {
        const { name } = this.props.act;
        return name === undefined || this.state.typed === name;
    }

    send = async (event) => {
        event.preventDefault();
        if (!this.isConfirmed || this.state.isSending) return;
        const { act } = this.props;
        this.setState({ isSending: true, error: null });
        try {
            const response = await post(`/api/acts/${act.path}`, act.body(this.state.values, this.state.typed));
            this.setState({ response, isSending: false });
            refreshAll();
        } catch (error) {
            this.setState({ error, isSending: false });
        }
    };

    render({ act, onClose }, { response }) {
        return html`<dialog
            ref=${(dialog) => (this.dialog = dialog)}
            aria-labelledby="act-title"
            onClose=${() => onClose(response !== null)}
        >
            <form onSubmit=${this.send}>
                <h2 id="act-title">${act.title}</h2>
                ${response ? this.renderResponse(response) : this.renderForm()}
            </form>
        </dialog>`;
    }

    renderForm() {
        const { act } = this.props;
        const { values, typed, isSending, error } = this.state;
        const change = (name, value) => this.setState({ values: { ...values, [name]: value } });
        return html` ${act.warning && html`<p>${act.warning}</p>`}
            ${(act.fields ?? []).map(
                (field) =>
                    html`<${Field} key=${field.name} field=${field} value=${values[field.name]} onChange=${change} />`,
            )}
            ${
                act.name !== undefined &&
                html`<label class="field">
                    <span>Type <strong class="mono">${act.name}</strong> to confirm</span>
                    <input
                        type="text"
                        autocomplete="off"
                        autocapitalize="off"
                        spellcheck=${false}
                        value=${typed}
                        onInput=${(event) => this.setState({ typed: event.target.value })}
                    />
                </label>`
            }
            <${Refusal} error=${error} />
            <div class="row">
                <button type="button" onClick=${() => this.dialog.close()}>Cancel</button>
                <button
                    class=${act.isDangerous ? "primary danger" : "primary"}
                    disabled=${!this.isConfirmed || isSending}
                >
                    ${act.verb}
                </button>
            </div>`;
    }

    renderResponse(response) {
        return html` <p class=${response.is_applied === false ? "banner warn" : "banner"} role="status">
                ${response.message}
            </p>
            ${
                response.left?.length > 0 &&
                html`<ul>
                    ${response.left.map(({ sequence, reason }) => html`<li key=${sequence}>${sequence}: ${reason}</li>`)}
                </ul>`
            }
            <div class="row">
                <button class="primary" type="button" onClick=${() => this.dialog.close()} ref=${focus}>Close</button>
            </div>`;
    }
}

const initialValues = (act) => Object.fromEntries((act.fields ?? []).map(({ name, initial }) => [name, initial ?? ""]));

// A field is {name, label, hint, initial, choices}: a choice, a box to tick if it starts as a boolean, or text.
function Field({ field, value, onChange }) {
    const { name, label, hint, choices, pattern, isRequired } = field;
    if (typeof value === "boolean") {
        return html`<label class="check"
            ><input type="checkbox" checked=${value} onChange=${(event) => onChange(name, event.target.checked)} />
            ${label}</label
        >`;
    }
    const told = html`<span>${label}</span>`;
    if (choices) {
        return html`<label class="field"
            >${told}<select value=${value} onChange=${(event) => onChange(name, event.target.value)}>
                ${choices.map((choice) => html`<option key=${choice} value=${choice}>${choice}</option>`)}</select
            >${hint && html`<span class="hint">${hint}</span>`}</label
        >`;
    }
    return html`<label class="field"
        >${told}<input
            type="text"
            autocomplete="off"
            spellcheck=${false}
            value=${value}
            pattern=${pattern}
            required=${isRequired}
            onInput=${(event) => onChange(name, event.target.value)}
        />${hint && html`<span class="hint">${hint}</span>`}</label
    >`;
}
