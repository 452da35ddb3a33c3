// Browsers start no worker for a page that was opened as a file, so the search of the site would be missing there.
// Of the worker's interface this has what the theme's search uses: the script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.loaded = new Promise(resolve => addEventListener("DOMContentLoaded", () => resolve(this.load(url))))
    }

    load(url) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      return new Promise(resolve => {
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = () => resolve(inside)
        inside.document.body.append(script)
      })
    }

    async postMessage(data) {
      const inside = await this.loaded
      inside.dispatchEvent(new inside.MessageEvent("message", { data }))
    }

    terminate() {
      this.frame?.remove()
    }
  }
}
