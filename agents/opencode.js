// Written by mulligan install opencode; mulligan uninstall opencode removes it.
// It tells mulligan of turns and tool calls, and never stands in their way.
import { spawn } from "node:child_process"

const program = @PROGRAM@

export const Mulligan = async ({ directory, client }) => {
  // One at a time: what begins a turn is told before what happens in it.
  let last = Promise.resolve()

  // What the hook prints is for the person to see.
  const show = (printed) => {
    try {
      const message = printed && JSON.parse(printed).systemMessage
      if (message) Promise.resolve(client?.tui?.showToast?.({ body: { message, variant: "warning" } })).catch(() => {})
    } catch {}
  }

  const hook = (payload) =>
    new Promise((done) => {
      const child = spawn(program, ["hook", "opencode"], { cwd: directory, stdio: ["pipe", "pipe", "ignore"] })
      let printed = ""
      child.stdout.on("data", (text) => (printed += text))
      const timer = setTimeout(done, 5000)
      const end = () => {
        clearTimeout(timer)
        done()
      }
      child.on("error", end)
      child.on("close", () => {
        show(printed)
        end()
      })
      child.stdin.on("error", () => {})
      child.stdin.end(JSON.stringify({ ...payload, directory }))
    }).catch(() => {})

  const tell = (payload) => (last = last.then(() => hook(payload)))

  return {
    "chat.message": async (input, output) => {
      const prompt = (output?.parts ?? []).find((part) => part?.type === "text" && !part.synthetic)?.text
      await tell({
        event: "chat.message",
        sessionID: input.sessionID,
        messageID: input.messageID ?? output?.message?.id,
        prompt: prompt?.slice(0, 400),
      })
    },
    "tool.execute.before": async (input, output) => {
      await tell({ event: "tool.execute.before", sessionID: input.sessionID, callID: input.callID, tool: input.tool, args: output?.args })
    },
    "tool.execute.after": async (input) => {
      await tell({ event: "tool.execute.after", sessionID: input.sessionID, callID: input.callID, tool: input.tool })
    },
    event: async ({ event }) => {
      if (event.type === "session.idle") {
        await tell({ event: "session.idle", sessionID: event.properties.sessionID })
      }
    },
  }
}
