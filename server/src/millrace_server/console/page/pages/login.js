// The login: a token becomes a session, which scripts cannot read and other sites cannot use.
import { session } from "../api.js";
import { Component, focus, html } from "../html.js";
import { Refusal } from "../parts/status.js";

export class Login extends Component {
    state = { token: "", error: null, isSending: false };

    componentDidMount() {
        document.title = "Log in · Millrace";
    }

    send = async (event) => {
        event.preventDefault();
        this.setState({ isSending: true, error: null });
        try {
            await session.open(this.state.token.trim());
            this.props.onLogin();
        } catch (error) {
            this.setState({ error, isSending: false });
        }
    };

    render(_props, { token, error, isSending }) {
        return html`<main class="door">
            <form class="card" onSubmit=${this.send}>
                <h1>Log in to Millrace</h1>
                <label class="field"
                    ><span>Token</span>
                    <input
                        type="password"
                        required
                        ref=${focus}
                        autocomplete="current-password"
                        value=${token}
                        onInput=${(event) => this.setState({ token: event.target.value })}
                    />
                    <span class="hint">An administrator makes one with <code>millraced token make</code>.</span>
                </label>
                <${Refusal} error=${error} />
                <button class="primary" disabled=${isSending}>Log in</button>
            </form>
        </main>`;
    }
}
