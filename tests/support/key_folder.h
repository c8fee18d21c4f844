// Folders of keys for tests, including certificates that product code would not make.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nic/tls/authority.h"
#include "nic/tls/credentials.h"

namespace pbox::test {

// A new folder in the system's folder for temporary files. It is removed with all its files.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  // Writes a file of the folder, and replaces it if it exists.
  void write(const std::string& name, const std::string& text, unsigned mode = 0600) const;

 private:
  std::string path_;
};

// Returns the time from an hour ago until `seconds` from now.
tls::Validity valid_for(int64_t seconds = 3600);

tls::KeyPair authority(const std::string& cluster = "rack");

// Returns a certificate and a key that a test has made itself, as text.
tls::KeyPair pem_of(X509* certificate, EVP_PKEY* key);

// The files of one identity that `signer` has signed. `trusted` is the certificate of the authority
// that must have signed peers; by default that of `signer`.
class KeyFolder : public TemporaryFolder {
 public:
  KeyFolder(const tls::KeyPair& signer, const std::string& uri)
      : KeyFolder(signer, order(uri), signer.certificate) {}
  KeyFolder(const tls::KeyPair& signer, const tls::CertificateOrder& order,
            const std::string& trusted);

  // Returns the order for a certificate with this identity. The certificate lets its owner accept
  // connections if the identity is a box's.
  static tls::CertificateOrder order(const std::string& uri, int64_t seconds = 3600);
  // Returns the loaded credentials; throws with the error if they are refused.
  std::shared_ptr<const tls::Credentials> load() const;
  // Returns the token of the folder's files; throws with the error if they cannot be read.
  std::string token() const;
};

}  // namespace pbox::test
