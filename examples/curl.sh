#!/bin/sh
# Push a job, claim it, ack it: Penstock over HTTP with nothing but curl.
#
#   PENSTOCK_HTTP=http://127.0.0.1:6790 PENSTOCK_TOKEN=… examples/curl.sh
set -eu

server=${PENSTOCK_HTTP:-http://127.0.0.1:6790}

call() { # METHOD PATH [JSON]
    method=$1 path=$2
    shift 2
    curl --silent --show-error --fail-with-body --max-time 30 \
        --request "$method" "$server$path" \
        ${PENSTOCK_TOKEN:+--header "Authorization: Bearer $PENSTOCK_TOKEN"} \
        ${1:+--header "Content-Type: application/json" --data "$1"}
    echo
}

echo "push:"
call POST /v1/queues/emails/jobs '{"payload": {"user": 1, "lang": "en"}, "key": "welcome:1"}'

echo "claim:"
claimed=$(call POST /v1/queues/emails/claim '{"n": 1, "lease_ms": 30000, "wait_ms": 5000}')
echo "$claimed"
lease=$(echo "$claimed" | sed 's/.*"lease":"\([^"]*\)".*/\1/')
id=$(echo "$claimed" | sed 's/.*"jobs":\[{"id":\([0-9]*\).*/\1/')

echo "ack:"
call POST "/v1/leases/$lease/ack" "{\"results\": {\"$id\": \"sent\"}}"

echo "result:"
call GET "/v1/jobs/$id/result"
