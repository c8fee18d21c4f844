#include "tools/pboxctl/key_rotation.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/check.h"
#include "nic/tls/pem.h"
#include "nic/tls/revocation.h"
#include "tools/pboxctl/key_files.h"

namespace pboxctl {
namespace {

namespace tls = pbox::tls;
using pbox::Error;
using pbox::ErrorCode;
using pbox::Result;
using pbox::Status;

constexpr char kKey[] = "ca-key.pem";
constexpr char kNextKey[] = "next-key.pem";
constexpr char kFormerKey[] = "former-key.pem";

bool is_there(const std::string& path) {
  return access(path.c_str(), F_OK) == 0;
}

Status remove_file(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return pbox::ok_status();
  return pbox::system_error("cannot remove " + path, errno);
}

Status rename_file(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) == 0) return pbox::ok_status();
  return pbox::system_error("cannot rename " + from + " to " + to, errno);
}

}  // namespace

Result<AuthorityFolder> AuthorityFolder::read(const std::string& folder) {
  AuthorityFolder read(folder);
  if (const Status done = read.read_files(); !done) return done.error();
  return read;
}

Status AuthorityFolder::read_files() {
  const auto trusted = tls::read_pem_file(path("ca.pem"));
  if (!trusted) return trusted.error();
  for (const auto& certificate : tls::parse_certificates(*trusted)) {
    certificates_.push_back(tls::pem_text(certificate.get()));
  }
  if (certificates_.empty() || certificates_.size() > 2) {
    return Error{ErrorCode::kInvalidArgument,
                 path("ca.pem") + " holds " + std::to_string(certificates_.size()) +
                     " certificates; expected one, or two while the authority is being replaced"};
  }
  auto key = tls::read_private_file(path(kKey));
  if (!key) return key.error();
  if (is_there(path(kNextKey))) {
    const auto next = tls::read_private_file(path(kNextKey));
    if (!next) return next.error();
    // Step 2 was interrupted before its end, so complete it.
    if (tls::owns_key(certificates_[0], *next)) {
      if (const Status moved = rename_file(path(kNextKey), path(kKey)); !moved) return moved;
      key = *next;
    }
  }
  if (!tls::owns_key(certificates_[0], *key)) {
    return Error{ErrorCode::kInvalidArgument, "the first certificate of " + path("ca.pem") +
                                                  " does not belong to " + path(kKey) +
                                                  "; restore both from one backup"};
  }
  signers_.push_back({.certificate = certificates_[0], .key = *key});
  return read_further_keys();
}

Status AuthorityFolder::read_further_keys() {
  if (certificates_.size() == 1) return pbox::ok_status();
  rotation_ = is_there(path(kNextKey)) ? Rotation::kBegun : Rotation::kIssuing;
  const char* name = rotation_ == Rotation::kBegun ? kNextKey : kFormerKey;
  if (!is_there(path(name))) return pbox::ok_status();
  auto key = tls::read_private_file(path(name));
  if (!key) return key.error();
  if (!tls::owns_key(certificates_[1], *key)) {
    return Error{ErrorCode::kInvalidArgument, "the second certificate of " + path("ca.pem") +
                                                  " does not belong to " + path(name) +
                                                  "; restore both from one backup"};
  }
  signers_.push_back({.certificate = certificates_[1], .key = std::move(*key)});
  return pbox::ok_status();
}

// Makes the folder trust these certificates. Drops the revocation lists of all other authorities.
Status AuthorityFolder::trust(const std::vector<std::string>& certificates) {
  auto former = read_trust(folder_);
  if (!former) return former.error();
  Trust next;
  for (const std::string& certificate : certificates) next.authorities += certificate;
  auto lists = tls::lists_of(next.authorities, former->revocations);
  if (!lists) return lists.error();
  next.revocations = std::move(*lists);
  if (const Status written = write_trust(folder_, next); !written) return written;
  certificates_ = certificates;
  return pbox::ok_status();
}

Status AuthorityFolder::begin(const tls::Validity& validity) {
  if (rotation_ != Rotation::kNone) return pbox::ok_status();
  const auto facts = tls::authority_facts(certificates_[0]);
  if (!facts) return Error{facts.error().code, path("ca.pem") + " " + facts.error().message};
  tls::KeyPair next = tls::make_authority(facts->cluster, validity);
  if (const Status done = remove_file(path(kFormerKey)); !done) return done;
  const Status written = replace_file(path(kNextKey), next.key, Mode::kOwnerOnly);
  if (!written) return written;
  if (const Status done = trust({certificates_[0], next.certificate}); !done) return done;
  signers_.push_back(std::move(next));
  rotation_ = Rotation::kBegun;
  return pbox::ok_status();
}

Status AuthorityFolder::issue() {
  if (rotation_ == Rotation::kIssuing) return pbox::ok_status();
  if (rotation_ == Rotation::kNone) {
    return Error{
        ErrorCode::kInvalidArgument,
        "the replacement of the authority has not begun; begin it with pboxctl keys rotate " +
            folder_};
  }
  PBOX_CHECK(signers_.size() == 2);
  const Status kept = replace_file(path(kFormerKey), signers_[0].key, Mode::kOwnerOnly);
  if (!kept) return kept;
  if (const Status done = trust({certificates_[1], certificates_[0]}); !done) return done;
  if (const Status done = rename_file(path(kNextKey), path(kKey)); !done) return done;
  std::swap(signers_[0], signers_[1]);
  rotation_ = Rotation::kIssuing;
  return pbox::ok_status();
}

Status AuthorityFolder::finish() {
  if (rotation_ == Rotation::kBegun) {
    return Error{ErrorCode::kInvalidArgument,
                 "the former authority still signs all keys; pboxctl keys rotate " + folder_ +
                     " --issue is the next step"};
  }
  if (rotation_ == Rotation::kIssuing) {
    if (const Status done = trust({certificates_[0]}); !done) return done;
  }
  signers_.resize(1);
  rotation_ = Rotation::kNone;
  return remove_file(path(kFormerKey));
}

}  // namespace pboxctl
