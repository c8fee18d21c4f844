// The replacement of a cluster's authority by another one, in three steps. A step breaks no
// connection if the files of the step before have reached all boxes and workers:
//
//   1 begin   ca.pem holds both certificates; the former key still signs   adds next-key.pem
//   2 issue   the new key signs all keys from now on   adds former-key.pem
//   3 finish  ca.pem holds the new certificate only
//
// The files alone determine the state. A step that was interrupted is completed when it is
// repeated.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "nic/tls/authority.h"

namespace pboxctl {

enum class Rotation { kNone, kBegun, kIssuing };

class AuthorityFolder {
 public:
  static pbox::Result<AuthorityFolder> read(const std::string& folder);

  Rotation rotation() const { return rotation_; }
  // Returns the certificates of ca.pem. The key of the first one signs new keys.
  const std::vector<std::string>& certificates() const { return certificates_; }
  // Returns the authorities whose private keys are in the folder, the present one first.
  const std::vector<pbox::tls::KeyPair>& signers() const { return signers_; }

  // Each step returns at once if it is done already. If another step has to come first, the error
  // names it.
  pbox::Status begin(const pbox::tls::Validity& validity);
  pbox::Status issue();
  pbox::Status finish();

 private:
  explicit AuthorityFolder(std::string folder) : folder_(std::move(folder)) {}
  std::string path(const char* name) const { return folder_ + "/" + name; }
  pbox::Status read_files();
  pbox::Status read_further_keys();
  pbox::Status trust(const std::vector<std::string>& certificates);

  std::string folder_;
  std::vector<std::string> certificates_;
  std::vector<pbox::tls::KeyPair> signers_;
  Rotation rotation_ = Rotation::kNone;
};

}  // namespace pboxctl
