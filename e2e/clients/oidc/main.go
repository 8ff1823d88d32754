// Command oidc is the OpenID provider of an end-to-end test: the example server of github.com/zitadel/oidc, over TLS and
// with users of its own; and the browser of a user who signs in there.
//
//	oidc serve ADDRESS DIR   serves https://ADDRESS; DIR gets the certificate of its authority, ca.crt
//	oidc browse URL CA USER  opens the page, signs in, and follows the issuer to where it sends the browser
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
)

// password is that of both users of the example.
const password = "verysecure"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "serve":
		return serve(args[1], args[2])
	case len(args) == 4 && args[0] == "browse":
		return browse(args[1], args[2], args[3])
	}
	return errors.New("usage: oidc serve ADDRESS DIR | oidc browse URL CA USER")
}

// serve runs the example server. Kubernetes requires an issuer with https, so only its listener is not the example's.
func serve(address, dir string) error {
	certificate, err := certified(address, filepath.Join(dir, "ca.crt"))
	if err != nil {
		return err
	}
	issuer := "https://" + address
	storage.RegisterClients(storage.NativeClient("kubeapps", "http://127.0.0.1/callback"))
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	router := exampleop.SetupServer(issuer, storage.NewStorage(storage.NewUserStore(issuer)), logger, false)
	server := &http.Server{Addr: address, Handler: router, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}}}
	return server.ListenAndServeTLS("", "")
}

// certified makes an authority, which it writes for clients to trust, and a certificate of it for the address.
func certified(address, file string) (tls.Certificate, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := func(name string) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber:          big.NewInt(time.Now().UnixNano()),
			Subject:               pkix.Name{CommonName: name},
			NotBefore:             time.Now().Add(-time.Hour),
			NotAfter:              time.Now().Add(24 * time.Hour),
			BasicConstraintsValid: true,
		}
	}
	authority, leaf := template("issuers"), template(host)
	authority.IsCA, authority.KeyUsage = true, x509.KeyUsageCertSign
	leaf.IPAddresses, leaf.ExtKeyUsage = []net.IP{net.ParseIP(host)}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	trusted, err := x509.CreateCertificate(rand.Reader, authority, authority, signer.Public(), signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	served, err := x509.CreateCertificate(rand.Reader, leaf, authority, key.Public(), signer)
	if err != nil {
		return tls.Certificate{}, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted})
	return tls.Certificate{Certificate: [][]byte{served}, PrivateKey: key}, os.WriteFile(file, text, 0o644)
}

// browse signs a user in as a browser does: it follows redirects, keeps cookies, and fills in the form of the login page.
func browse(page, authority, user string) error {
	trusted, err := os.ReadFile(authority)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	login, err := browser.Get(page)
	if err != nil {
		return err
	}
	login.Body.Close()
	form := login.Request.URL
	id := form.Query().Get("authRequestID")
	if id == "" {
		return fmt.Errorf("no login page, but %s %s", login.Status, form)
	}
	target := url.URL{Scheme: form.Scheme, Host: form.Host, Path: form.Path}
	answer, err := browser.PostForm(target.String(), url.Values{"id": {id}, "username": {user}, "password": {password}})
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || answer.Request.URL.Path != "/callback") {
		err = fmt.Errorf("%s %s: %s", answer.Status, answer.Request.URL, text)
	}
	return err
}
