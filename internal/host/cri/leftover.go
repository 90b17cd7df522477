package cri

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerd's name in the CRI, the gRPC header for a namespace of its own API, and the namespace of its CRI plugin
// (containerd: pkg/cri/constants, pkg/namespaces).
const (
	containerdName      = "containerd"
	containerdNamespace = "containerd-namespace"
	criNamespace        = "k8s.io"
)

// RemoveContainer is the CRI's, with one addition. If containerd reports that a container has exited but still has its
// process (task), the task is deleted first: containerd permanently refuses to remove such a container, with
// FailedPrecondition and "cannot delete running task", and the CRI has no call that would change that. It happens if
// the client that asked for a start disconnects, or gives up, between the creation of the process and the answer
// (containerd 1.6: StartError, "failed to get task pid: context canceled"). The process of such a container has not
// begun to run the container's program.
func (c *Client) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest,
	options ...grpc.CallOption) (*runtimeapi.RemoveContainerResponse, error) {
	answer, err := c.RuntimeServiceClient.RemoveContainer(ctx, r, options...)
	if status.Code(err) != codes.FailedPrecondition {
		return answer, err
	}
	if leftover := c.endLeftovers(ctx, &runtimeapi.ContainerFilter{Id: r.ContainerId}); leftover != nil {
		return nil, refused(err, leftover)
	}
	return c.RuntimeServiceClient.RemoveContainer(ctx, r, options...)
}

// RemovePodSandbox is the CRI's, with RemoveContainer's addition for all containers of the sandbox.
func (c *Client) RemovePodSandbox(ctx context.Context, r *runtimeapi.RemovePodSandboxRequest,
	options ...grpc.CallOption) (*runtimeapi.RemovePodSandboxResponse, error) {
	answer, err := c.RuntimeServiceClient.RemovePodSandbox(ctx, r, options...)
	if status.Code(err) != codes.FailedPrecondition {
		return answer, err
	}
	if leftover := c.endLeftovers(ctx, &runtimeapi.ContainerFilter{PodSandboxId: r.PodSandboxId}); leftover != nil {
		return nil, refused(err, leftover)
	}
	return c.RuntimeServiceClient.RemovePodSandbox(ctx, r, options...)
}

// refused returns an error with the code and text of the runtime's refusal, and what else failed.
func refused(err, leftover error) error {
	return status.Errorf(status.Code(err), "%s; %v", status.Convert(err).Message(), leftover)
}

// endLeftovers deletes, through containerd's own API, the tasks of containers that containerd reports as exited. Other
// runtimes, and containers in other states, are not touched.
func (c *Client) endLeftovers(ctx context.Context, which *runtimeapi.ContainerFilter) error {
	runtime, err := c.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil || runtime.RuntimeName != containerdName {
		return err
	}
	which.State = &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_EXITED}
	list, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: which})
	if err != nil {
		return fmt.Errorf("list exited containers: %w", err)
	}
	var problems []error
	for _, exited := range list.Containers {
		if err := c.endTask(ctx, exited.Id); err != nil {
			problems = append(problems, fmt.Errorf("end what is left of container %s: %w", exited.Id, err))
		}
	}
	return errors.Join(problems...)
}

// endTask kills a container's processes and deletes its task. It is no error if there are none.
func (c *Client) endTask(ctx context.Context, id string) error {
	ctx = metadata.AppendToOutgoingContext(ctx, containerdNamespace, criNamespace)
	api := tasks.NewTasksClient(c.conn)
	_, err := api.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
	// FailedPrecondition: it is dead already.
	if code := status.Code(err); err != nil && code != codes.NotFound && code != codes.FailedPrecondition {
		return err
	}
	if _, err := api.Wait(ctx, &tasks.WaitRequest{ContainerID: id}); err != nil && status.Code(err) != codes.NotFound {
		return err
	}
	if _, err := api.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id}); err != nil &&
		status.Code(err) != codes.NotFound {
		return err
	}
	return nil
}
