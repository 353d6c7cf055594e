// A page's frame: its title, which gets the focus when the reader comes to the page, and its acts.
import { Component, html } from "../html.js";

let isFirst = true;

export class Page extends Component {
    componentDidMount() {
        this.tell();
        if (!isFirst) this.heading.focus({ preventScroll: true });
        if (!isFirst) scrollTo(0, 0);
        isFirst = false;
    }

    componentDidUpdate() {
        this.tell();
    }

    tell() {
        document.title = `${this.props.title} · Millrace`;
    }

    render({ title, above, acts, children }) {
        return html` <div class="head">
                <h1 tabindex="-1" ref=${(heading) => (this.heading = heading)}>
                    ${above && html`<span class="crumb">${above}</span>`}${title}
                </h1>
                ${acts && html`<div class="acts">${acts}</div>`}
            </div>
            <div class="stack">${children}</div>`;
    }
}
