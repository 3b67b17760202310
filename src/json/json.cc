// SPDX-License-Identifier: Apache-2.0
#include "json/json.h"

#include <cerrno>
#include <iterator>
#include <nlohmann/json.hpp>

namespace nupa {
namespace {

/// Iterates over a text and counts its lines.
class LineCounter {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineCounter(const char* at, size_t* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  LineCounter& operator++() {
    if (*at_++ == '\n') ++*line_;
    return *this;
  }
  LineCounter operator++(int) {
    const LineCounter before = *this;
    ++*this;
    return before;
  }
  bool operator==(const LineCounter& other) const { return at_ == other.at_; }
  bool operator!=(const LineCounter& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  size_t* line_;
};

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const OnJsonKey& on_key) {
  using nlohmann::json;
  size_t line = 1;
  json::parser_callback_t on_event;
  if (on_key)
    on_event = [&](int depth, json::parse_event_t event, json& parsed) {
      if (event == json::parse_event_t::key)
        on_key(static_cast<size_t>(depth), parsed.get_ref<const std::string&>(), line);
      return true;
    };
  try {
    return json::parse(LineCounter(text.data(), &line), LineCounter(text.data() + text.size(), &line), on_event);
  } catch (const json::exception& error) {
    return fail(EINVAL, std::string(error.what()));
  }
}

std::string json_text(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace nupa
