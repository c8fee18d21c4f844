#include "nic/tls/peer_check.h"

#include <string_view>
#include <vector>

#include "base/check.h"

namespace pbox::tls {
namespace {

// Returns the URIs of our scheme among the alternative names.
std::vector<std::string> identity_uris(const X509* certificate) {
  std::vector<std::string> uris;
  const auto names = alternative_names(certificate);
  for (int index = 0; index < sk_GENERAL_NAME_num(names.get()); ++index) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), index);
    if (name->type != GEN_URI) continue;
    const std::string uri = bytes_of(name->d.uniformResourceIdentifier);
    if (uri.starts_with("pbox://")) uris.push_back(uri);
  }
  return uris;
}

Status check_identity(const PeerCheck& check, const Identity& peer) {
  const std::string uri = to_uri(peer);
  if (peer.cluster != check.cluster) {
    return Error{ErrorCode::kInvalidArgument, "the peer is " + uri + ", but these keys are of " +
                                                  "cluster '" + check.cluster +
                                                  "'; use keys of one cluster on both sides"};
  }
  if (check.must_be_box && peer.role != Role::kBox) {
    return Error{
        ErrorCode::kInvalidArgument,
        "the peer is " + uri + ", which is not a box; check that the address is a pboxd's"};
  }
  if (check.must_be_box && !check.box.empty() && peer.box != check.box) {
    return Error{ErrorCode::kInvalidArgument,
                 "the peer is " + uri + ", but this is the address of box '" + check.box +
                     "'; give each box keys that state its own name ([box] name)"};
  }
  return ok_status();
}

int data_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// OpenSSL calls this for each certificate of the chain, and for each error in it. Returns 0 if the
// peer is refused; PeerCheck::failure then states why.
int verify(int is_ok, X509_STORE_CTX* context) {
  if (is_ok == 0 && forgive_stale_list(context)) return 1;
  auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* check = static_cast<PeerCheck*>(SSL_get_ex_data(ssl, data_index()));
  PBOX_CHECK(check != nullptr);
  if (is_ok == 0) {
    check->failure = "the peer's certificate is refused: " +
                     describe_verification_error(X509_STORE_CTX_get_error(context));
    return 0;
  }
  if (X509_STORE_CTX_get_error_depth(context) != 0) return 1;
  auto identity = identity_of(X509_STORE_CTX_get_current_cert(context));
  const Status accepted = identity ? check_identity(*check, *identity) : Status(identity.error());
  if (accepted) {
    check->peer = std::move(*identity);
    return 1;
  }
  check->failure = accepted.error().message;
  X509_STORE_CTX_set_error(context, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

}  // namespace

Result<Identity> identity_of(const X509* certificate) {
  const auto uris = identity_uris(certificate);
  if (uris.size() != 1) {
    return Error{ErrorCode::kInvalidArgument,
                 "the certificate has " + std::to_string(uris.size()) +
                     " identities (pbox:// URIs among its alternative names), but must have "
                     "exactly one; make it with `pboxctl keys`"};
  }
  return parse_identity(uris[0]);
}

bool forgive_stale_list(X509_STORE_CTX* context) {
  const int error = X509_STORE_CTX_get_error(context);
  if (error != X509_V_ERR_UNABLE_TO_GET_CRL && error != X509_V_ERR_CRL_HAS_EXPIRED) return false;
  X509_STORE_CTX_set_error(context, X509_V_OK);
  return true;
}

void set_peer_check(SSL* ssl, PeerCheck* check) {
  PBOX_CHECK(SSL_set_ex_data(ssl, data_index(), check) == 1);
  SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, verify);
}

std::string describe_verification_error(int error) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "it has expired; make a new one with `pboxctl keys`, or set this host's clock";
    case X509_V_ERR_CERT_NOT_YET_VALID: return "it is not valid yet; set the clocks of both hosts";
    case X509_V_ERR_CERT_REVOKED: return "it is revoked; make a new one with `pboxctl keys`";
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return "no authority in ca.pem has signed it; use keys of one cluster on both sides";
    case X509_V_ERR_INVALID_PURPOSE:
      return "its key usage does not allow this end of a connection; a server needs the "
             "certificate of a box";
    default: return X509_verify_cert_error_string(error);
  }
}

}  // namespace pbox::tls
