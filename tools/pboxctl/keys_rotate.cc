// keys rotate, keys revoke, and keys show for an authority.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iostream>

#include "nic/tls/credentials.h"
#include "nic/tls/pem.h"
#include "nic/tls/revocation.h"
#include "tools/pboxctl/key_command.h"
#include "tools/pboxctl/key_files.h"
#include "tools/pboxctl/key_rotation.h"

namespace pboxctl {
namespace {

namespace tls = pbox::tls;
using pbox::Error;
using pbox::Status;

// Prints how far the rotation is, and which step is next.
void print_state(const std::string& folder, const AuthorityFolder& authority) {
  const auto fingerprint = [&](size_t index) {
    return tls::authority_facts(authority.certificates()[index])->fingerprint;
  };
  const std::string copy = "copy " + folder +
                           "/ca.pem to the folders of all boxes and workers, and reload the boxes "
                           "(systemctl reload pboxd)";
  switch (authority.rotation()) {
    case Rotation::kNone: std::cout << "rotation  none: one authority is trusted\n"; return;
    case Rotation::kBegun:
      std::cout << "rotation  step 1 of 3: the next authority is trusted, but signs no keys yet\n"
                << "next      " << fingerprint(1) << "\nTo do: " << copy
                << ". Once all have it: pboxctl keys rotate " << folder << " --issue\n";
      return;
    case Rotation::kIssuing:
      std::cout
          << "rotation  step 2 of 3: this authority signs keys, and the former is still trusted\n"
          << "former    " << fingerprint(1)
          << "\nTo do: make new keys for all boxes and workers (pboxctl keys box, job, ... "
             "--force), copy them, and reload the boxes. Once all have them: pboxctl keys "
             "rotate "
          << folder << " --finish\n";
      return;
  }
}

std::string certificate_of(const std::string& folder) {
  return folder + "/cert.pem";
}

// Makes new keys of the same identity, valid for as long as before and signed by the present
// authority. Does nothing if that authority signed the present keys.
Status renew(const AuthorityFolder& authority, const Trust& trust, const std::string& folder) {
  const tls::KeyPair& signer = authority.signers()[0];
  const auto certificate = tls::read_pem_file(certificate_of(folder));
  if (!certificate) return certificate.error();
  if (tls::is_signed_by(*certificate, signer.certificate)) return pbox::ok_status();
  const auto facts = tls::certificate_facts(*certificate);
  if (!facts)
    return Error{facts.error().code, certificate_of(folder) + " " + facts.error().message};
  const int64_t from_s = std::time(nullptr) - kClockSkewSeconds;
  const int64_t lasts_s = facts->validity.to_unix_s - facts->validity.from_unix_s;
  const int64_t ends_s = tls::authority_facts(signer.certificate)->expires_unix_s;
  const auto keys = tls::issue(
      signer,
      {.uris = {tls::to_uri(facts->identity)},
       .hosts = facts->hosts,
       .serves = facts->identity.role == tls::Role::kBox,
       .validity = {.from_unix_s = from_s, .to_unix_s = std::min(from_s + lasts_s, ends_s)}});
  if (!keys) return keys.error();
  if (const Status done = write_keys(folder, trust, *keys, true); !done) return done;
  std::cout << folder << ": new keys of " << tls::to_uri(facts->identity) << '\n';
  return pbox::ok_status();
}

Status check_renewed(const AuthorityFolder& authority, const std::string& folder) {
  const auto certificate = tls::read_pem_file(certificate_of(folder));
  if (!certificate) return certificate.error();
  if (tls::is_signed_by(*certificate, authority.certificates()[0])) return pbox::ok_status();
  return Error{pbox::ErrorCode::kInvalidArgument,
               "the former authority has signed " + certificate_of(folder) +
                   "; renew it first: pboxctl keys rotate --issue"};
}

Status update(const AuthorityFolder& authority, const Trust& trust, const std::string& folder,
              bool renews) {
  if (renews) {
    if (const Status renewed = renew(authority, trust, folder); !renewed) return renewed;
  }
  return write_trust(folder, trust);
}

}  // namespace

int rotate_authority(const boost::program_options::variables_map& given, const Words& more) {
  if (more.size() < 2) {
    return complain("keys", "write keys rotate FOLDER, where FOLDER is the authority's");
  }
  const bool issues = given.contains("issue"), finishes = given.contains("finish");
  if (issues && finishes)
    return complain("keys", "--issue and --finish are two steps; give only one");
  const unsigned days = days_of(given, kAuthorityDays);
  if (days == 0) return kUsage;
  const std::string& folder = more[1];
  const Words copies(more.begin() + 2, more.end());
  for (const std::string& copy : copies) {
    if (std::filesystem::is_regular_file(copy)) {
      return complain("keys", copy +
                                  " is a file; rotate renews only folders of keys; make tokens "
                                  "again with pboxctl keys token --force");
    }
  }
  auto authority = AuthorityFolder::read(folder);
  if (!authority) return fail_keys(authority.error().message);
  for (const std::string& copy : copies) {
    if (!finishes) break;
    if (const Status ready = check_renewed(*authority, copy); !ready) {
      return fail_keys(ready.error().message);
    }
  }
  const Status done = finishes ? authority->finish()
                      : issues ? authority->issue()
                               : authority->begin(validity_of(days));
  if (!done) return fail_keys(done.error().message);
  const auto trust = read_trust(folder);
  if (!trust) return fail_keys(trust.error().message);
  for (const std::string& copy : copies) {
    const Status updated = update(*authority, *trust, copy, issues);
    if (!updated) return fail_keys(updated.error().message);
  }
  const int shown = show_authority(folder);
  if (finishes) {
    std::cout << "To do: copy " << folder << "/ca.pem"
              << (trust->revocations.empty() ? "" : " and crl.pem")
              << " to the folders of all boxes and workers, and reload the boxes (systemctl reload "
                 "pboxd). They end connections whose keys the former authority has signed.\n";
  }
  return shown;
}

int revoke_keys(const Words& more) {
  if (more.size() != 3) {
    return complain("keys",
                    "write keys revoke FOLDER KEYS, where FOLDER is the authority's and KEYS a "
                    "folder of keys or a cert.pem");
  }
  const std::string& folder = more[1];
  const auto authority = AuthorityFolder::read(folder);
  if (!authority) return fail_keys(authority.error().message);
  auto trust = read_trust(folder);
  if (!trust) return fail_keys(trust.error().message);
  const auto certificate = read_certificate(more[2]);
  if (!certificate) return fail_keys(certificate.error().message);
  auto revocation =
      tls::revoke(authority->signers(), trust->revocations, *certificate, std::time(nullptr));
  if (!revocation) return fail_keys(more[2] + ": " + revocation.error().message);
  trust->revocations = std::move(revocation->lists);
  const Status written = write_trust(folder, *trust);
  if (!written) return fail_keys(written.error().message);
  std::cout
      << revocation->identity << (revocation->was_revoked ? ": revoked already" : ": revoked")
      << "\nTo do: copy " << folder
      << "/crl.pem to the folders of all boxes, and for keys of a box to those of all workers "
         "too; reload the boxes (systemctl reload pboxd)\n";
  return kDone;
}

int show_authority(const std::string& folder) {
  const auto authority = AuthorityFolder::read(folder);
  if (!authority) return fail_keys(authority.error().message);
  const auto facts = tls::authority_facts(authority->certificates()[0]);
  if (!facts) return fail_keys(folder + "/ca.pem " + facts.error().message);
  std::cout << "authority of cluster " << facts->cluster << ", until "
            << tls::utc_text(facts->expires_unix_s) << "\nauthority " << facts->fingerprint << '\n';
  print_state(folder, *authority);
  return kDone;
}

}  // namespace pboxctl
