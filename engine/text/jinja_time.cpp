// strftime, in UTC and English whatever the process's locale is.
#include <array>
#include <string>

#include "engine/text/jinja_builtins.h"

namespace lockstep::text::jinja {

namespace {

constexpr std::array<std::string_view, 12> kMonths = {"January", "February", "March",     "April",   "May",      "June",
                                                      "July",    "August",   "September", "October", "November", "December"};
constexpr std::array<std::string_view, 7> kDays = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};

struct Moment {
  std::int64_t year;
  int month, day;  // from 1
  int hour, minute, second;
  int weekday;      // Sunday is 0
  int day_of_year;  // from 1
};

/// The proleptic Gregorian calendar, by eras of 400 years that start on the first of March.
Moment to_moment(std::int64_t unix_seconds) {
  std::int64_t days = unix_seconds / 86400, rest = unix_seconds % 86400;
  if (rest < 0) {
    rest += 86400;
    --days;
  }
  Moment moment{};
  moment.hour = static_cast<int>(rest / 3600);
  moment.minute = static_cast<int>(rest / 60 % 60);
  moment.second = static_cast<int>(rest % 60);
  moment.weekday = static_cast<int>(((days + 4) % 7 + 7) % 7);
  const std::int64_t shifted = days + 719468;  // from 0000-03-01
  const std::int64_t era = (shifted >= 0 ? shifted : shifted - 146096) / 146097;
  const std::int64_t day_of_era = shifted - era * 146097;
  const std::int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const std::int64_t day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const std::int64_t month_from_march = (5 * day_from_march + 2) / 153;
  moment.day = static_cast<int>(day_from_march - (153 * month_from_march + 2) / 5 + 1);
  moment.month = static_cast<int>(month_from_march < 10 ? month_from_march + 3 : month_from_march - 9);
  moment.year = year_of_era + era * 400 + (moment.month <= 2 ? 1 : 0);
  const bool leap = moment.year % 4 == 0 && (moment.year % 100 != 0 || moment.year % 400 == 0);
  moment.day_of_year = static_cast<int>(moment.month > 2 ? day_from_march + 60 + (leap ? 1 : 0) : day_from_march - 305);
  return moment;
}

std::string number(std::int64_t value, std::size_t width, char fill) {
  std::string digits = std::to_string(value);
  if (fill != '\0' && digits.size() < width) digits.insert(0, width - digits.size(), fill);
  return digits;
}

/// `flag`: '-' for no padding, '_' for blanks, '0' for zeros, or none.
std::string conversion(char kind, char flag, const Moment& now, std::int64_t unix_seconds) {
  const auto padded = [&](std::int64_t value, std::size_t width, char fill = '0') {
    return number(value, width, flag == '-' ? '\0' : flag == '_' ? ' ' : flag == '0' ? '0' : fill);
  };
  const auto all = [&](std::string_view format) { return format_time(format, unix_seconds); };
  const int hour12 = now.hour % 12 == 0 ? 12 : now.hour % 12;
  switch (kind) {
    case 'Y': return std::to_string(now.year);
    case 'y': return padded((now.year % 100 + 100) % 100, 2);
    case 'C': return padded(now.year / 100, 2);
    case 'm': return padded(now.month, 2);
    case 'd': return padded(now.day, 2);
    case 'e': return padded(now.day, 2, ' ');
    case 'H': return padded(now.hour, 2);
    case 'k': return padded(now.hour, 2, ' ');
    case 'I': return padded(hour12, 2);
    case 'l': return padded(hour12, 2, ' ');
    case 'M': return padded(now.minute, 2);
    case 'S': return padded(now.second, 2);
    case 'f': return "000000";
    case 'j': return padded(now.day_of_year, 3);
    case 'w': return std::to_string(now.weekday);
    case 'u': return std::to_string(now.weekday == 0 ? 7 : now.weekday);
    case 'U': return padded((now.day_of_year + 6 - now.weekday) / 7, 2);
    case 'W': return padded((now.day_of_year + 6 - (now.weekday + 6) % 7) / 7, 2);
    case 'B': return std::string(kMonths[static_cast<std::size_t>(now.month - 1)]);
    case 'b':
    case 'h': return std::string(kMonths[static_cast<std::size_t>(now.month - 1)].substr(0, 3));
    case 'A': return std::string(kDays[static_cast<std::size_t>(now.weekday)]);
    case 'a': return std::string(kDays[static_cast<std::size_t>(now.weekday)].substr(0, 3));
    case 'p': return now.hour < 12 ? "AM" : "PM";
    case 'P': return now.hour < 12 ? "am" : "pm";
    case 's': return std::to_string(unix_seconds);
    case 'z':
    case 'Z': return "";  // the reference's time has no zone
    case 'F': return all("%Y-%m-%d");
    case 'T':
    case 'X': return all("%H:%M:%S");
    case 'R': return all("%H:%M");
    case 'r': return all("%I:%M:%S %p");
    case 'D':
    case 'x': return all("%m/%d/%y");
    case 'c': return all("%a %b %e %H:%M:%S %Y");
    case 'n': return "\n";
    case 't': return "\t";
    case '%': return "%";
    default: raise("ValueError", "strftime_now: the format %" + std::string(1, kind) + " is not supported");
  }
}

}  // namespace

std::string format_time(std::string_view format, std::int64_t unix_seconds) {
  constexpr std::int64_t kLastSecond = 253402300799;  // 9999-12-31, where Python's datetime ends
  if (unix_seconds < -62135596800 || unix_seconds > kLastSecond) raise("ValueError", "strftime_now: the year is out of range");
  if (format.size() > 4096) raise("ValueError", "strftime_now: the format is too long");
  const Moment now = to_moment(unix_seconds);
  std::string result;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      result.push_back(format[i]);
      continue;
    }
    char flag = '\0';
    ++i;
    if ((format[i] == '-' || format[i] == '_' || format[i] == '0') && i + 1 < format.size()) flag = format[i++];
    if (static_cast<unsigned char>(format[i]) >= 0x80) raise("ValueError", "strftime_now: a letter must follow %");
    result += conversion(format[i], flag, now, unix_seconds);
  }
  return result;
}

}  // namespace lockstep::text::jinja
