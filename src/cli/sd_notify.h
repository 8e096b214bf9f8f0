/* sd_notify.h - tells systemd how the start goes (Type=notify), without libsystemd.
 *
 * Place: cli. Protocol: one datagram of "KEY=value" lines to the Unix socket named by NOTIFY_SOCKET
 *        (sd_notify(3)). Without that variable nothing happens; failures are ignored, since nobody
 *        could act on them. */
#ifndef CLI_SD_NOTIFY_H
#define CLI_SD_NOTIFY_H

void sd_notify_send(const char *state); /* "READY=1\nSTATUS=serving" */

#endif
