#include "nic/tls/credentials.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <ctime>

#include "base/check.h"
#include "nic/tls/openssl_connection.h"
#include "nic/tls/peer_check.h"
#include "nic/tls/pem.h"

namespace pbox::tls {
namespace {

// Largest size of one peer's certificates, in bytes. It bounds what a handshake may make this side
// hold.
constexpr long kPeerCertificateBytesMax = 16 * 1024;

// Initialises OpenSSL without an exit handler, because threads of the application that has loaded
// this library may still use it when the process ends.
void initialise_once() {
  static const bool is_initialised = OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;
  PBOX_CHECK(is_initialised);
}

struct FreeStack {
  void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }
};

// Returns the certificates after the first; the caller still owns them.
std::unique_ptr<STACK_OF(X509), FreeStack> chain_of(const std::vector<Owned<X509>>& certificates) {
  std::unique_ptr<STACK_OF(X509), FreeStack> chain(sk_X509_new_null());
  PBOX_CHECK(chain != nullptr);
  for (size_t index = 1; index < certificates.size(); ++index) {
    PBOX_CHECK(sk_X509_push(chain.get(), certificates[index].get()) > 0);
  }
  return chain;
}

int accept_stale_lists(int is_ok, X509_STORE_CTX* context) {
  return is_ok != 0 || forgive_stale_list(context) ? 1 : 0;
}

}  // namespace

Result<std::unique_ptr<const Credentials>> Credentials::load(const std::string& path) {
  initialise_once();
  const auto files = read_key_files(path);
  if (!files) return files.error();
  std::unique_ptr<Credentials> credentials(new Credentials);
  credentials->make_context();
  for (const auto step : {&Credentials::read_authorities, &Credentials::read_revocations,
                          &Credentials::read_certificate}) {
    if (const Status done = (*credentials.*step)(*files); !done) return done.error();
  }
  return std::unique_ptr<const Credentials>(std::move(credentials));
}

// TLS 1.3 has no renegotiation. A resumed session would share its secrets with another one, so
// there are no tickets; without tickets there is no early data.
void Credentials::make_context() {
  context_.reset(SSL_CTX_new(TLS_method()));
  PBOX_CHECK(context_ != nullptr);
  SSL_CTX* context = context_.get();
  PBOX_CHECK(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1);
  PBOX_CHECK(SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  PBOX_CHECK(SSL_CTX_set_num_tickets(context, 0) == 1);
  PBOX_CHECK(SSL_CTX_set_max_early_data(context, 0) == 1);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_cert_list(context, kPeerCertificateBytesMax);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);  // an idle connection holds no buffers
}

Status Credentials::read_authorities(const KeyFiles& files) {
  const std::string file = files.name_of("ca.pem");
  const auto authorities = parse_certificates(files.authorities);
  if (authorities.empty()) {
    return invalid(file +
                   " holds no certificate, or a damaged one; copy ca.pem from the cluster's keys");
  }
  authorities_.reset(X509_STORE_new());
  PBOX_CHECK(authorities_ != nullptr);
  for (const auto& authority : authorities) {
    if (X509_check_ca(authority.get()) == 0) {
      return invalid(
          file + " holds the certificate " + fingerprint_of(authority.get()) +
          ", which does not belong to an authority; copy ca.pem from the cluster's keys");
    }
    PBOX_CHECK(X509_STORE_add_cert(authorities_.get(), authority.get()) == 1);
    if (!authority_fingerprints_.empty()) authority_fingerprints_ += ' ';
    authority_fingerprints_ += fingerprint_of(authority.get());
  }
  PBOX_CHECK(SSL_CTX_set1_verify_cert_store(context_.get(), authorities_.get()) == 1);
  return ok_status();
}

Status Credentials::read_revocations(const KeyFiles& files) {
  if (!files.revocations) return ok_status();
  const auto lists = parse_revocation_lists(*files.revocations);
  if (lists.empty()) {
    return invalid(files.name_of("crl.pem") +
                   " holds no revocation list, or a damaged one; replace or remove it");
  }
  for (const auto& list : lists) {
    PBOX_CHECK(X509_STORE_add_crl(authorities_.get(), list.get()) == 1);
  }
  PBOX_CHECK(X509_STORE_set_flags(authorities_.get(),
                                  X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL) == 1);
  return ok_status();
}

Status Credentials::read_certificate(const KeyFiles& files) {
  certificate_name_ = files.name_of("cert.pem");
  const auto certificates = parse_certificates(files.certificate);
  if (certificates.empty()) {
    return invalid(certificate_name_ +
                   " holds no certificate, or a damaged one; make one with `pboxctl keys`");
  }
  X509* own = certificates[0].get();
  const auto chain = chain_of(certificates);
  if (const Status valid = check_certificate(files, own, chain.get()); !valid) return valid;
  const auto key = parse_private_key(files.key);
  if (key == nullptr) {
    return invalid(files.name_of("key.pem") +
                   " holds no private key, or one with a password; make one with `pboxctl keys`");
  }
  if (X509_check_private_key(own, key.get()) != 1) {
    return invalid(files.name_of("key.pem") + " does not belong to " + certificate_name_ +
                   "; copy both files from one run of `pboxctl keys`");
  }
  if (SSL_CTX_use_cert_and_key(context_.get(), own, key.get(), chain.get(), 1) != 1) {
    return invalid(certificate_name_ + " cannot be used: " + take_openssl_error() +
                   "; make one with `pboxctl keys`");
  }
  return ok_status();
}

// Checks this end's certificate as peers will, so that a mistake is reported here, not by each
// peer.
Status Credentials::check_certificate(const KeyFiles& files, X509* certificate,
                                      STACK_OF(X509) * chain) {
  expires_unix_s_ = unix_seconds_of(X509_get0_notAfter(certificate));
  if (expires_unix_s_ <= std::time(nullptr)) {
    return invalid(certificate_name_ + " expired on " + utc_text(expires_unix_s_) +
                   "; make a new one with `pboxctl keys`, or set this host's clock");
  }
  const auto identity = identity_of(certificate);
  if (!identity) return invalid(certificate_name_ + ": " + identity.error().message);
  identity_ = *identity;
  const Owned<X509_STORE_CTX> verification(X509_STORE_CTX_new());
  PBOX_CHECK(verification != nullptr);
  PBOX_CHECK(X509_STORE_CTX_init(verification.get(), authorities_.get(), certificate, chain) == 1);
  X509_STORE_CTX_set_verify_cb(verification.get(), accept_stale_lists);
  if (X509_verify_cert(verification.get()) == 1) return ok_status();
  const int error = X509_STORE_CTX_get_error(verification.get());
  ERR_clear_error();
  return invalid(certificate_name_ + " is not valid with " + files.name_of("ca.pem") + ": " +
                 describe_verification_error(error));
}

Status Credentials::check_peer(const std::string& pem) const {
  const auto certificates = parse_certificates(pem);
  // The handshake looks only at the chain to an authority, but a peer may send other certificates.
  if (certificates.empty()) {
    return invalid("the peer's certificate is refused: it was sent with a damaged one");
  }
  const auto chain = chain_of(certificates);
  const Owned<X509_STORE_CTX> verification(X509_STORE_CTX_new());
  PBOX_CHECK(verification != nullptr);
  PBOX_CHECK(X509_STORE_CTX_init(verification.get(), authorities_.get(), certificates[0].get(),
                                 chain.get()) == 1);
  X509_STORE_CTX_set_flags(verification.get(), X509_V_FLAG_NO_CHECK_TIME);
  X509_STORE_CTX_set_verify_cb(verification.get(), accept_stale_lists);
  if (X509_verify_cert(verification.get()) == 1) return ok_status();
  const int error = X509_STORE_CTX_get_error(verification.get());
  ERR_clear_error();
  return invalid("the peer's certificate is refused: " + describe_verification_error(error));
}

std::unique_ptr<Connection> Credentials::connect(const std::string& box) const {
  return make_connection(context_.get(), End::kClient,
                         {.cluster = identity_.cluster, .must_be_box = true, .box = box},
                         certificate_name_);
}

std::unique_ptr<Connection> Credentials::accept() const {
  return make_connection(context_.get(), End::kServer, {.cluster = identity_.cluster},
                         certificate_name_);
}

// A record begins with its type, 22 for a handshake, and version 3.1 or later.
bool may_be_tls(std::string_view first_bytes) {
  const size_t count = first_bytes.size();
  return (count < 1 || first_bytes[0] == 22) && (count < 2 || first_bytes[1] == 3) &&
         (count < 3 || (first_bytes[2] >= 1 && first_bytes[2] <= 4));
}

std::string utc_text(int64_t unix_s) {
  const std::time_t time = unix_s;
  tm parts{};
  PBOX_CHECK(gmtime_r(&time, &parts) != nullptr);
  std::array<char, 64> text;
  PBOX_CHECK(std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts) > 0);
  return text.data();
}

}  // namespace pbox::tls
