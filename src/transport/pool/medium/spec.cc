// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/spec.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <memory>

#include "base/settings.h"
#include "base/system_error.h"
#include "transport/pool/medium/layout.h"

namespace nupa::pool {
namespace {

constexpr std::string_view kPci = "pci:";
constexpr std::string_view kFile = "file:";
constexpr std::string_view kDax = "/dev/dax";
constexpr uint32_t kMaxBar = 5;

std::optional<uint64_t> number_in(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// DDDD:BB:DD.F in hexadecimal digits.
bool is_pci_address(std::string_view text) {
  constexpr std::string_view kForm = "xxxx:xx:xx.x";
  if (text.size() != kForm.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (kForm[i] == 'x' ? !is_digit : text[i] != kForm[i]) return false;
  }
  return true;
}

/// An error text about a part of `text`.
class Wrong {
 public:
  Wrong(std::string_view source, std::string_view text) : source_(source), text_(text) {}
  template <class... Parts>
  tl::unexpected<Error> operator()(const Parts&... parts) const {
    return fail(EINVAL, source_, source_.empty() ? "" : "=", text_, ": ", parts...);
  }

 private:
  std::string_view source_, text_;
};

Result<void> read_medium(std::string_view medium, const Wrong& wrong, Spec* spec) {
  if (medium.starts_with(kPci)) {
    spec->kind = MediumKind::kPci;
    spec->name = medium.substr(kPci.size());
    if (!is_pci_address(spec->name))
      return wrong("'", spec->name, "' is not the address of a PCI function (expected for example pci:0000:00:02.0)");
    return {};
  }
  if (medium.starts_with(kFile)) {
    spec->kind = MediumKind::kFile;
    spec->name = medium.substr(kFile.size());
    if (!spec->name.starts_with("/"))
      return wrong("'", spec->name, "' is not an absolute path (expected for example file:/dev/shm/pool)");
    return {};
  }
  if (medium.starts_with(kDax)) {
    spec->kind = MediumKind::kDax;
    spec->name = medium;
    return {};
  }
  return wrong("'", medium, "' is not a medium (expected pci:ADDRESS, /dev/daxN.N or file:PATH)");
}

Result<void> read_option(std::string_view name, std::string_view value, const Wrong& wrong, Spec* spec) {
  const auto is_number = [&](uint64_t most) -> Result<uint64_t> {
    const auto number = number_in(value);
    if (!number || *number > most) return wrong(name, "=", value, ": expected a whole number from 0 to ", most);
    return *number;
  };
  if (name == "host") {
    const auto host = is_number(kMaxHosts - 1);
    if (!host) return tl::unexpected(host.error());
    spec->host = static_cast<uint16_t>(*host);
    return {};
  }
  if (name == "bar") {
    if (spec->kind != MediumKind::kPci) return wrong("bar=", value, ": only a medium pci: has a BAR");
    const auto bar = is_number(kMaxBar);
    if (!bar) return tl::unexpected(bar.error());
    spec->bar = static_cast<uint32_t>(*bar);
    return {};
  }
  if (name == "coherence") {
    if (value == "auto")
      spec->coherence = Coherence::kAuto;
    else if (value == "none")
      spec->coherence = Coherence::kNone;
    else if (value == "full")
      spec->coherence = Coherence::kFull;
    else
      return wrong("coherence=", value, ": expected auto, none or full");
    return {};
  }
  if (name == "doorbell") {
    if (value == "auto")
      spec->doorbell = DoorbellChoice::kAuto;
    else if (value == "none")
      spec->doorbell = DoorbellChoice::kNone;
    else
      return wrong("doorbell=", value, ": expected auto or none");
    return {};
  }
  if (name == "seed") {
    if (spec->kind != MediumKind::kFile) return wrong("seed=", value, ": only a medium file: has a seed");
    const auto seed = is_number(UINT64_MAX);
    if (!seed) return tl::unexpected(seed.error());
    spec->seed = *seed;
    return {};
  }
  return wrong("'", name, "' is not an option (expected host, bar, coherence, doorbell or seed)");
}

}  // namespace

std::string Spec::medium() const {
  switch (kind) {
    case MediumKind::kFile:
      return std::string(kFile) + name;
    case MediumKind::kPci:
      return std::string(kPci) + name;
    case MediumKind::kDax:
      break;
  }
  return name;
}

Result<Spec> parse_spec(std::string_view text, std::string_view source) {
  const Wrong wrong(source, text);
  Spec spec;
  std::string_view rest = text;
  const auto next = [&] {
    const size_t end = rest.find(',');
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    return part;
  };
  if (const auto medium = read_medium(next(), wrong, &spec); !medium) return tl::unexpected(medium.error());
  std::string seen = ",";
  while (!rest.empty()) {
    const std::string_view part = next();
    const size_t equals = part.find('=');
    if (equals == part.npos) return wrong("'", part, "' is not an option (expected NAME=VALUE)");
    const std::string name(part.substr(0, equals));
    if (seen.find("," + name + ",") != seen.npos) return wrong(name, " is there twice");
    seen += name + ",";
    if (const auto read = read_option(name, part.substr(equals + 1), wrong, &spec); !read)
      return tl::unexpected(read.error());
  }
  if (seen.find(",host,") == seen.npos) return wrong("host is missing (expected host=N, another one on each host)");
  return spec;
}

Result<std::optional<Spec>> spec_from_environment() {
  const auto some = [](Result<Spec> spec) -> Result<std::optional<Spec>> {
    if (!spec) return tl::unexpected(spec.error());
    return std::optional<Spec>(std::move(*spec));
  };
  if (const char* const text = base::text_setting("NUPA_POOL"); text != nullptr)
    return some(parse_spec(text, "NUPA_POOL"));
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(kSpecFile, "re"), std::fclose);
  if (file == nullptr) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<Spec>();
    return base::fail_call(errno, "cannot open ", kSpecFile);
  }
  std::string text;
  char part[1024];
  for (size_t length = 0; (length = std::fread(part, 1, sizeof part, file.get())) > 0;) text.append(part, length);
  if (std::ferror(file.get()) != 0) return fail(EIO, "cannot read ", kSpecFile);
  return some(parse_spec_json(text, kSpecFile));
}

}  // namespace nupa::pool
