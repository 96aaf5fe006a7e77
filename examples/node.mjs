// Push a job, claim it, ack it: Penstock over HTTP from Node (18 or newer, no packages).
//
//   PENSTOCK_HTTP=http://127.0.0.1:6790 PENSTOCK_TOKEN=… node examples/node.mjs

const server = process.env.PENSTOCK_HTTP ?? "http://127.0.0.1:6790";
const token = process.env.PENSTOCK_TOKEN;

async function call(method, path, body) {
  const headers = {};
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(server + path, { method, headers, body: JSON.stringify(body) });
  if (answer.status === 204) return null;
  const said = await answer.json();
  if (!answer.ok) throw new Error(`${said.code}: ${said.detail}`);
  return said;
}

const pushed = await call("POST", "/v1/queues/emails/jobs", {
  jobs: [1, 2, 3].map((user) => ({ payload: { user, lang: "en" } })),
});
console.log("pushed", pushed.jobs.map((job) => job.id));

const lease = await call("POST", "/v1/queues/emails/claim", { n: 10, wait_ms: 5000 });
if (lease === null) throw new Error("nothing to do");
const results = {};
for (const job of lease.jobs) results[job.id] = `hello, user ${job.payload.user}`;

const { acked } = await call("POST", `/v1/leases/${lease.lease}/ack`, { results });
console.log("acked", acked);

const { state, result } = await call("GET", `/v1/jobs/${acked[0]}/result`);
console.log("result", state, result);
