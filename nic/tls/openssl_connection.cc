#include "nic/tls/openssl_connection.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>

#include <array>
#include <utility>

#include "base/check.h"
#include "nic/tls/pem.h"

namespace pbox::tls {
namespace {

constexpr std::string_view kExporterLabel = "EXPORTER-pbox-data";
constexpr size_t kRecordBytes = 16 * 1024;  // the largest plaintext of a TLS record

class OpenSslConnection : public Connection {
 public:
  OpenSslConnection(SSL_CTX* context, End end, PeerCheck check, std::string certificate)
      : check_(std::move(check)), certificate_(std::move(certificate)), ssl_(SSL_new(context)) {
    PBOX_CHECK(ssl_ != nullptr);
    from_peer_ = BIO_new(BIO_s_mem());
    to_peer_ = BIO_new(BIO_s_mem());
    PBOX_CHECK(from_peer_ != nullptr && to_peer_ != nullptr);
    SSL_set_bio(ssl_.get(), from_peer_, to_peer_);  // takes ownership of both
    set_peer_check(ssl_.get(), &check_);
    if (end == End::kClient) {
      SSL_set_connect_state(ssl_.get());
    } else {
      SSL_set_accept_state(ssl_.get());
    }
  }

  Status receive(std::string_view bytes, std::string& plain, std::string& to_peer) override {
    ERR_clear_error();
    if (!bytes.empty()) {
      PBOX_CHECK(BIO_write(from_peer_, bytes.data(), static_cast<int>(bytes.size())) ==
                 static_cast<int>(bytes.size()));
    }
    Status result = ok_status();
    if (!is_established_) {
      const int done = SSL_do_handshake(ssl_.get());
      is_established_ = done == 1;
      if (!is_established_) result = outcome_of(done);
    }
    if (is_established_) result = decrypt(plain);
    take_output(to_peer);
    return result;
  }

  Status send(std::string_view plain, std::string& to_peer) override {
    PBOX_CHECK(is_established_);
    ERR_clear_error();
    size_t written = 0;
    const int done = SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &written);
    Status result = done == 1 ? ok_status() : outcome_of(done);
    take_output(to_peer);
    // The buffer grows, so it takes everything at once, unless a message of the TLS protocol itself
    // has arrived from the peer only in part.
    if (result && written != plain.size()) {
      return Error{ErrorCode::kInvalidArgument,
                   "the peer stopped in the middle of a TLS message; connect again"};
    }
    return result;
  }

  bool is_established() const override { return is_established_; }

  const Identity& peer() const override {
    PBOX_CHECK(is_established_ && check_.peer.has_value());
    return *check_.peer;
  }

  std::string peer_certificates() const override {
    PBOX_CHECK(is_established_);
    std::string text = pem_text(SSL_get0_peer_certificate(ssl_.get()));
    const STACK_OF(X509)* chain = SSL_get_peer_cert_chain(ssl_.get());
    // The chain begins with the peer's own certificate only at the client's end.
    for (int index = SSL_is_server(ssl_.get()) ? 0 : 1; index < sk_X509_num(chain); ++index) {
      text += pem_text(sk_X509_value(chain, index));
    }
    return text;
  }

  void export_secret(std::span<const std::byte> context,
                     std::span<std::byte, kExportedSecretBytes> to) const override {
    PBOX_CHECK(is_established_);
    PBOX_CHECK(SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(to.data()),
                                          to.size(), kExporterLabel.data(), kExporterLabel.size(),
                                          reinterpret_cast<const unsigned char*>(context.data()),
                                          context.size(), 1) == 1);
  }

 private:
  Status decrypt(std::string& plain) {
    std::array<char, kRecordBytes> record;
    for (;;) {
      size_t bytes = 0;
      const int done = SSL_read_ex(ssl_.get(), record.data(), record.size(), &bytes);
      if (done != 1) return outcome_of(done);
      plain.append(record.data(), bytes);
    }
  }

  // A close_notify is no error: the peer closes the TCP connection next, which the caller notices.
  Status outcome_of(int done) {
    const int error = SSL_get_error(ssl_.get(), done);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN) return ok_status();
    if (!check_.failure.empty()) {
      ERR_clear_error();
      return Error{ErrorCode::kInvalidArgument, check_.failure};
    }
    const int reason = ERR_GET_REASON(ERR_peek_last_error());
    const std::string text = take_openssl_error();
    return Error{ErrorCode::kInvalidArgument, describe(reason, text)};
  }

  std::string describe(int reason, const std::string& text) const {
    const std::string own = "the certificate " + certificate_;
    switch (reason) {
      case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
        return "the peer does not accept " + own +
               ": no authority in its ca.pem has signed it; use keys of one cluster on both sides";
      case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
        return "the peer does not accept " + own +
               ": it has expired; make a new one with `pboxctl keys`";
      case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
        return "the peer does not accept " + own +
               ": it is revoked; make a new one with `pboxctl keys`";
      case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
      case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
      case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
      case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
        return "the peer does not accept " + own + " (" + text +
               "); see the peer's log for the reason, and `pboxctl keys show` for the "
               "certificate's identity";
      case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return "the peer has shown no certificate; make keys for it with `pboxctl keys`, and name "
               "their folder or token there (PBOX_KEYS for workers)";
      case SSL_R_UNSUPPORTED_PROTOCOL:
      case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION:
        return "one side does not speak TLS 1.3 (" + text + "); use releases on both sides that do";
      case SSL_R_WRONG_VERSION_NUMBER:
        return "the peer does not speak TLS; check that it is a pboxd with keys ([security] keys)";
      default: return text;
    }
  }

  void take_output(std::string& to_peer) {
    char* bytes = nullptr;
    const long count = BIO_get_mem_data(to_peer_, &bytes);
    if (count <= 0) return;
    to_peer.append(bytes, static_cast<size_t>(count));
    BIO_reset(to_peer_);
  }

  PeerCheck check_;          // ssl_ refers to it
  std::string certificate_;  // name of this end's certificate, for errors
  Owned<SSL> ssl_;
  BIO* from_peer_ = nullptr;  // ssl_ owns both
  BIO* to_peer_ = nullptr;
  // SSL_is_init_finished() does not serve: it turns false again while a later message of TLS is
  // incomplete.
  bool is_established_ = false;
};

}  // namespace

std::unique_ptr<Connection> make_connection(SSL_CTX* context, End end, PeerCheck check,
                                            const std::string& certificate) {
  return std::make_unique<OpenSslConnection>(context, end, std::move(check), certificate);
}

}  // namespace pbox::tls
