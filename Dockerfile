# Portolan alone: the static binary, and nothing else. docs/install.md says how to build it.
FROM scratch
ARG BINARY=target/x86_64-unknown-linux-musl/dist/portolan
COPY --chmod=755 ${BINARY} /portolan
USER 65532:65532
ENV HOME=/data PATH=/
VOLUME /data
EXPOSE 6443
ENTRYPOINT ["/portolan"]
CMD ["server", "--data-dir", "/data", "--bind-address", "0.0.0.0:6443"]
