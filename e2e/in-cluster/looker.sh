# Asks the API of the workspace every second, as client libraries in a pod do, and prints the code and the token's hash.
account=/var/run/secrets/kubernetes.io/serviceaccount
path="api/v1/namespaces/$(cat $account/namespace)/configmaps"
trap 'exit 0' TERM
while :; do
  code=$(curl -s -m 5 -o /dev/null -w '%{http_code}' --cacert $account/ca.crt \
    -H "Authorization: Bearer $(cat $account/token)" "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT/$path")
  echo "asked $code $(md5sum < $account/token | cut -c1-8)"
  sleep 1 & wait $!
done
