// A service in another language that knows nothing of keys. Its ledger is a file that it appends to.
const fs = require("fs");
const http = require("http");
const [port, ledger] = process.argv.slice(2);

http.createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = Buffer.concat(parts).toString();
    fs.appendFileSync(ledger, `${body}\n`);
    if (request.url === "/stream") {
      response.writeHead(200, { "Content-Type": "text/plain" });
      for (let number = 0; number < 50; number++) response.write(`part ${number}\n`);
      response.end();
    } else {
      response.writeHead(201, { "Content-Type": "application/json", "X-Key": request.headers["idempotency-key"] || "" });
      response.end(JSON.stringify({ paid: body, at: process.hrtime.bigint().toString() }));
    }
  });
}).listen(Number(port), "127.0.0.1");
